"""Freeing levels: those that no longer serve, those that nobody uses, and those whose memory a new one needs."""
