"""Authoring of the encoder and decoder graphs."""
