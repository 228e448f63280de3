"""Measuring the levels of a bundle: quality, latency, memory, and the machine that they were measured on."""
