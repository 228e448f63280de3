"""Capacity: what a server carries by a simulation, and what it does."""
