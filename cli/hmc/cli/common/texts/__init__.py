"""Texts of a command: where they come from, how they are translated, and how the answers are written."""
