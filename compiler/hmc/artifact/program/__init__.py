"""Step programs: what a level computes, as a short list of operations."""
