"""A port for a program that has to be told one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A free port, which stays this test's until the block ends: a socket is bound to it and does not listen. So the
    system gives it to nobody who asks for any port, and a program that is told this one can listen there."""
    with socket.socket() as holder:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
