"""Streams of texts: how many are under way, whose turn it is at a full queue, and the answer of each."""
