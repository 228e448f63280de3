"""Analyses of attention weights: maps of one sentence, and the confidence of heads."""
