"""Comparisons between models, between texts, and between pruned checkpoints."""
