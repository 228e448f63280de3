"""The search of a step inside the decoder graph: beam search and greedy search, whose state stays on the device."""
