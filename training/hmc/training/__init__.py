"""Learning which attention heads matter: the model, its gates, the training loop and head pruning (PyTorch)."""
