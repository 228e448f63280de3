"""Searches as arithmetic on one state: beam search, greedy search, sampling, constraints. No graph, no threads."""
