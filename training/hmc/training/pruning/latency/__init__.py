"""Pruning to a latency: heads, feed-forward neurons and layers close together, each weighed by what it costs."""
