"""What a caller asks of the engine, and what it answers."""
