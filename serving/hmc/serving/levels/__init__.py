"""The levels of a bundle: loading them, choosing one for a request, measuring their latency, and freeing them."""
