"""From requested levels to a bundle on disk."""
