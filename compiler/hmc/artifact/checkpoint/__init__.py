"""Checkpoints: reading, writing, slimming, and head layouts in files."""
