"""Ports that several processes listen on together. The kernel gives each new connection to one of them."""

from __future__ import annotations

import socket

from hmc.serving.server.access.listening import check_port


def reserve(host: str, port: int, option: str) -> socket.socket:
    """Takes a port for processes that will share it, and listens to nothing itself. Close the socket to give it back.

    port: 0 takes any free one. option: of the command line, for errors. Raises PortInUseError and InvalidRequestError.
    """
    check_port(host, port, option)  # the socket below would share a port with another service of this user
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return made


def number_of(reserved: socket.socket) -> int:
    """The port that was reserved."""
    return int(reserved.getsockname()[1])
