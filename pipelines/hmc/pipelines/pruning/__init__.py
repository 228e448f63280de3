"""Pruning a model whose training data is not there: its own translations of plain text take their place."""
