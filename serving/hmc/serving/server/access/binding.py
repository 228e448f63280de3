"""gRPC servers that listen with the limits of the settings, and the addresses that they got."""

from __future__ import annotations

import os
from pathlib import Path

import grpc

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.server.access.certificates import Certificates
from hmc.serving.server.access.listening import (
    UNIX,
    check_port,
    check_socket_file,
    is_loopback,
    join_address,
    local_host,
    parse_listener,
)
from hmc.serving.server.settings import ServerSettings
from hmc.serving.wire.rules import MAX_MESSAGE_BYTES

HANDSHAKE_MS = 20_000
KEEPALIVE_MS = 60_000
KEEPALIVE_ANSWER_MS = 20_000
PING_MS = 10_000
PING_STRIKES = 2
"""Time for a TLS handshake; after so long without traffic a client is asked whether it is there; time for its answer;
least time between two pings of a client; pings that may come earlier before the connection is closed."""


def grpc_options(settings: ServerSettings, *, shared: bool = False) -> list[tuple[str, int]]:
    """Options of a gRPC server: its limits on connections, calls, messages and time. shared: whether other fronts
    listen on its port."""
    options = [
        # Else a second server could listen on the same port, and would get some of the calls.
        ("grpc.so_reuseport", int(shared)),
        ("grpc.max_receive_message_length", settings.max_message_mib << 20),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        # Between the two limits gRPC would refuse at random.
        ("grpc.max_metadata_size", settings.max_metadata_kib << 10),
        ("grpc.absolute_max_metadata_size", settings.max_metadata_kib << 10),
        ("grpc.max_concurrent_streams", settings.max_streams),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_ANSWER_MS),
        # Else an answer has a minute, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_ANSWER_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MS),
        ("grpc.http2.max_ping_strikes", PING_STRIKES),
    ]
    for name, seconds in (
        ("grpc.max_connection_age_ms", settings.connection_age_seconds),
        ("grpc.max_connection_age_grace_ms", settings.connection_grace_seconds),
        ("grpc.max_connection_idle_ms", settings.connection_idle_seconds),
    ):
        if seconds:
            options.append((name, max(1, round(min(1000 * seconds, 2**31 - 1)))))
    return options


def warnings_of(settings: ServerSettings) -> list[str]:
    """What is dangerous about the settings, for the log."""
    admin = None if settings.admin_address is None else parse_listener(settings.admin_address)
    hosts = [settings.host, *([admin[0]] if isinstance(admin, tuple) else [])]
    reached = ", ".join(host for host in hosts if not is_loopback(host))
    if not reached:
        return []
    known = settings.token is not None or settings.tokens is not None
    if not known and settings.tls_client_ca is None:
        return [f"no token is set: anyone who can reach {reached} may translate, and may load and unload levels"]
    if known and settings.tls_cert is None:
        return [f"no TLS: tokens and texts that travel to {reached} can be read on the way"]
    return []


def listen(
    server: grpc.aio.Server,
    host: str,
    port: int,
    setting: str,
    certificates: Certificates | None = None,
    *,
    shared: bool = False,
) -> int:
    """Lets a server listen on `host:port`, and returns the port.

    Raises PortInUseError, and InvalidRequestError for an address or TLS files that cannot be used. setting: of the
    port, for the error. shared: other processes listen there too.
    """
    if not shared:
        check_port(host, port, setting)
    address = join_address(host, port)
    try:
        if certificates is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificates.credentials())
    except RuntimeError as error:
        if not shared:
            check_port(host, port, setting)
        if certificates is None:
            raise InvalidRequestError(f"cannot listen on {address}: {error}") from error
        raise InvalidRequestError(
            f"cannot serve TLS with {certificates.files}: {error}; give a PEM certificate chain and its key without a "
            "passphrase"
        ) from error


def listen_for_admin(server: grpc.aio.Server, settings: ServerSettings, certificates: Certificates | None) -> str:
    """Lets a server listen on `admin_address`, and returns the address for clients on this machine. Raises as `listen`.

    A Unix socket has no TLS: only processes of the same user can open it.
    """
    listener = parse_listener(settings.admin_address or "")
    if not isinstance(listener, Path):
        host, port = listener
        return join_address(local_host(host), listen(server, host, port, "admin_address", certificates))
    check_socket_file(listener, "admin_address")
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"{UNIX}{listener}")
    except RuntimeError as error:
        raise InvalidRequestError(
            f"admin_address: cannot listen on {listener}: {error}; choose another path"
        ) from error
    finally:
        os.umask(before)
    return f"{UNIX}{listener}"
