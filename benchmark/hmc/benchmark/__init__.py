"""Benchmark: quality with its significance, latency, memory, and the report that states what was measured."""
