"""Several server processes behind one port: how they are started, and how they stay one service."""
