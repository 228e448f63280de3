"""Memory of devices: what a process holds of it and may hold, blocks of it, and weights that sessions share."""
