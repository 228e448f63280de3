"""Faster CPU versions of operations of a training step, and the memory allocator's settings."""
