"""How much faster pruning by latency makes a Transformer-base of few layers at equal quality."""
