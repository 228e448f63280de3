"""Continuous batching: the queue of a level, the rules by which sentences start, and the workers that run batches."""
