"""Everything that can be set about a server."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass, field
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError, PortInUseError
from hmc.serving.options import MAX_TOKENS
from hmc.serving.selection import AutoPolicy
from hmc.serving.tls import check_pair, read_pem

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest gRPC message, both ways. The runtime refuses larger ones with RESOURCE_EXHAUSTED."""
SCHEMES = ("unix:", "unix-abstract:", "vsock:", "dns:", "ipv4:", "ipv6:", "xds:")
"""What gRPC's own names of servers begin with."""


@dataclass(frozen=True)
class ServerSettings:
    """How to serve. Raises InvalidRequestError on values out of range, and on TLS files that are of no use."""

    host: str = "127.0.0.1"
    """Address to listen on; "0.0.0.0" or "::" for all of the machine's."""
    port: int = 50051
    """0 takes any free port."""
    device: str = "auto"
    """"auto", "cpu", "cuda" or "cuda:N"."""
    levels: tuple[str, ...] | None = None
    """Levels to load at the start; None loads all of the bundle."""
    default_level: str | None = None
    """Level of requests that choose none; None takes the bundle's."""
    lazy: bool = False
    """Load a level when it is first asked for."""
    auto: AutoPolicy = field(default_factory=AutoPolicy)
    """When a request that leaves the choice to the server gets a cheaper level."""
    max_texts_per_call: int = 1024
    queue_size: int = 1024
    """Texts that may wait at a level before it answers RESOURCE_EXHAUSTED."""
    max_rows: int = 128
    """Hypotheses decoded together at a level."""
    max_tokens: int = MAX_TOKENS
    """These times the positions that the longest of their texts may need; a text that needs more runs alone."""
    stream_window: int = 256
    """Texts of one stream under way at a time; the stream is not read further until one is answered."""
    threads: int = 0
    """Threads of each worker of a level; 0 takes one for each physical core, and one each for several workers."""
    workers: int = 1
    """Batches that a level runs at the same time; more than one are for throughput on a CPU."""
    cache: str | Path = "auto"
    """Folder for weights as this machine's kernels want them, shared by levels and processes; "auto": the platform's;
    "none": every level has weights of its own."""
    drain_seconds: float = 30.0
    """Time that running calls get to finish when the server stops."""
    tls_cert: Path | None = None
    """PEM certificate chain; with `tls_key`, the server speaks TLS only."""
    tls_key: Path | None = None
    token: str | None = None
    """If set, calls need `authorization: Bearer TOKEN`; health checks do not."""
    metrics_port: int | None = None
    """Port for Prometheus on the same host; None serves no metrics."""

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise InvalidRequestError(f"{name} {value}: choose 0 to 65535")
        for name in ("max_texts_per_call", "queue_size", "max_rows", "max_tokens", "stream_window", "workers"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 1 or more")
        for name in ("threads", "drain_seconds"):
            if not getattr(self, name) >= 0:  # NaN is not
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 0 or more")
        if self.levels is not None and not self.levels:
            raise InvalidRequestError("levels: name at least one, or say all")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequestError("TLS needs both a certificate and a key; give both or neither")
        if self.tls_cert is not None and self.tls_key is not None:
            check_pair(self.tls_cert, self.tls_key)
        if self.token is not None:
            check_token(self.token)

    def tls_pair(self) -> tuple[bytes, bytes] | None:
        """Key and certificate chain as PEM; None without TLS. Raises InvalidRequestError on unreadable files."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return read_pem(self.tls_key), read_pem(self.tls_cert)

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_token(token: str) -> None:
    """Raises InvalidRequestError for what cannot be sent as a token."""
    if not (token.isascii() and token.isprintable() and token.strip()):
        raise InvalidRequestError("the token must be printable ASCII and not empty")


def check_address(address: str) -> None:
    """Raises InvalidRequestError for what cannot be the address of a server: `host:port`, or a name with a scheme."""
    if address.startswith(SCHEMES):
        return
    host, _, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    named = bracketed or not set(host) & set(":/[]")
    if not (host.strip() and named and address.isprintable() and " " not in address):
        raise InvalidRequestError(f"server address {address!r}: give HOST:PORT, such as localhost:50051 or [::1]:50051")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise InvalidRequestError(f"server address {address!r}: port {port!r}: choose 1 to 65535")


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port(host: str, port: int, option: str) -> None:
    """Listens on `host:port` for a moment. Raises PortInUseError, or InvalidRequestError for any other reason;
    both name `option`, which sets the port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                probe.listen(1)
    except UnicodeError as error:
        raise InvalidRequestError(f"--host {host!r} is no name of a machine; choose another") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"port {port} on {host} is in use by another process: stop that one, or choose another port with "
                f"{option} (0 takes any free one)"
            ) from error
        reason = f"cannot listen on {join_address(host, port)}: {error.strerror}"
        raise InvalidRequestError(f"{reason}; choose another --host or {option}") from error
