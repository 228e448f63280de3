"""Other engines with the weights of one checkpoint, each in a process of its own, measured as levels are."""
