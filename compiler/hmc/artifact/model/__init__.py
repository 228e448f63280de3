"""The model in numbers: architecture, heads and head layouts, feed-forward neurons, budgets."""
