"""The addresses that a server listens on, checked before they are used."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError, PortInUseError


def join_address(host: str, port: int) -> str:
    """Returns `host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_host(host: str) -> str:
    """The address by which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_port(host: str, port: int, setting: str) -> None:
    """Listens on `host:port` for a moment, and raises if that fails.

    Raises PortInUseError if another process listens there, and InvalidRequestError for any other reason. Both messages
    name the setting of the port.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in addresses:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
    except UnicodeError as error:
        raise InvalidRequestError(f"host {host!r}: it is not a valid host name; choose another") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use by another process: stop that one, or choose another {setting} "
                f"(0 takes any free one)"
            ) from error
        reason = f"cannot listen on {join_address(host, port)}: {error.strerror}"
        raise InvalidRequestError(f"{reason}; choose another host or {setting}") from error


UNIX = "unix:"


def parse_listener(address: str) -> tuple[str, int] | Path:
    """Splits `HOST:PORT`, or returns the path of `unix:PATH`. Raises InvalidRequestError."""
    if address.startswith(UNIX):
        path = Path(address.removeprefix(UNIX))
        if not path.name or path.is_dir():
            raise InvalidRequestError(f"admin_address {address!r}: name a file, such as unix:/run/hmc/admin.sock")
        return path
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise InvalidRequestError(
            f"admin_address {address!r}: give HOST:PORT, such as 127.0.0.1:50052, or unix:PATH; port 0 takes any free "
            "one"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_socket_file(path: Path, setting: str) -> None:
    """Raises PortInUseError if a process listens on this Unix socket; a socket that nobody listens on may be replaced.

    Raises InvalidRequestError if a file there is no socket, or its folder cannot be used.
    """
    try:
        if path.exists() and not path.is_socket():
            raise InvalidRequestError(f"{setting} {path} is a file and no socket: choose another path")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(os.fspath(path))
    except (FileNotFoundError, ConnectionRefusedError):
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise InvalidRequestError(f"{setting} {path}: its folder is missing or not writable") from None
        return
    except OSError as error:
        raise InvalidRequestError(f"{setting} {path}: {error.strerror or error}; choose another path") from error
    raise PortInUseError(f"another process listens on {path}: stop that one, or choose another {setting}")
