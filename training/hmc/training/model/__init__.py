"""The Transformer in PyTorch: attention with gates, loss, importance, decoding, checkpoints."""
