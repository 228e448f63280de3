"""A level's engine in a process of its own: ids go there and come back, over a socket that only this user can open."""
