"""Words everybody shares: head layout, checkpoint format, bundle manifest, validation. NumPy and pydantic only."""
