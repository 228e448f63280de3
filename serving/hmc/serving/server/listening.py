"""The addresses that a server listens on, checked before they are used."""

from __future__ import annotations

import errno
import socket

from hmc.artifact.errors import InvalidRequestError, PortInUseError


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_host(host: str) -> str:
    """The address by which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def check_port(host: str, port: int, option: str) -> None:
    """Listens on `host:port` for a moment, and raises if that fails.

    Raises PortInUseError if another process listens there, and InvalidRequestError for any other reason. Both messages
    name `option`, the command-line option that sets the port.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
    except UnicodeError as error:
        raise InvalidRequestError(f"--host {host!r} is not a valid host name; choose another") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use by another process: stop that one, or choose another port with "
                f"{option} (0 takes any free one)"
            ) from error
        reason = f"cannot listen on {join_address(host, port)}: {error.strerror}"
        raise InvalidRequestError(f"{reason}; choose another --host or {option}") from error
