"""Load on a real server: replayed streams, arrivals at random times, and clients that behave badly."""
