"""Linear layers and attention at each precision."""
