"""What a connection needs: target, options, credentials and metadata. Both clients make theirs here."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.client.calls import SERVICE, Call
from hmc.serving.wire.metadata import KEY
from hmc.serving.wire.rules import MAX_MESSAGE_BYTES, SCHEMES, check_address, check_token
from hmc.serving.wire.tls import read_authorities, read_pair

RECONNECT_MS = 100
"""Milliseconds before the first attempt to connect again; gRPC doubles them each time. Its own default of a second is
longer than most waits between two attempts of a call."""
RECONNECT_MOST_MS = 5_000
"""Longest wait between two attempts to connect. gRPC's own of two minutes would leave a server that is back without
calls for so long."""
RESOLVE_MS = 1_000
"""Least milliseconds between two look-ups of a name. gRPC's own is half a minute: a quick rollout would by then have
replaced all addresses that a client knows."""
BALANCED = {"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": SERVICE}}
"""gRPC's configuration for several servers: calls take turns, and servers whose health is not SERVING get none."""
Addresses = str | Sequence[str]
Pair = tuple[Path | str, Path | str]


@dataclass(frozen=True)
class Connection:
    """The arguments of a gRPC channel, and the metadata of every call."""

    name: str
    """The addresses as the user wrote them, for messages."""
    target: str
    options: tuple[tuple[str, int | str], ...]
    credentials: grpc.ChannelCredentials | None
    """None: without TLS."""
    metadata: tuple[tuple[str, str], ...]
    balanced: bool
    """Whether calls may go to any of several servers."""

    def metadata_of(self, call: Call[Any]) -> tuple[tuple[str, str], ...]:
        """What is sent beside the request. Raises InvalidRequestError if it is about one server and there may be
        several."""
        if call.admin and self.balanced:
            raise InvalidRequestError(
                f"{self.name}: {call.method} acts on one server, and this client may reach several; use a "
                "client of one address"
            )
        return ((KEY, str(call.request_id)), *self.metadata)


def connection(
    address: Addresses,
    token: str | None,
    tls_ca: Path | str | None,
    tls_pair: Pair | None,
    connections: int = 1,
    tls_name: str | None = None,
) -> Connection:
    """Checks the arguments of a client, see `Client`. Reads the PEM files and looks up several names; connects to
    nothing.

    Raises InvalidRequestError, and UnavailableError if one of several names is unknown.
    """
    addresses = [address] if isinstance(address, str) else list(address)
    if not addresses:
        raise InvalidRequestError("no server address: give HOST:PORT, such as localhost:50051")
    if connections < 1:
        raise InvalidRequestError(f"connections {connections}: choose 1 or more")
    for one in addresses:
        check_address(one)
    if token:
        check_token(token)
    options: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", -1),  # the server refuses what is too large, with a clear error
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", RECONNECT_MOST_MS),
    ]
    if connections > 1:
        options.append(("grpc.use_local_subchannel_pool", 1))  # else all channels would use the same connection
    balanced = len(addresses) > 1 or addresses[0].startswith("dns:")
    if balanced:
        options.append(("grpc.service_config", json.dumps(BALANCED)))
        options.append(("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS))
    if len(addresses) > 1:
        options.append(("grpc.default_authority", addresses[0]))
    if tls_name is not None:
        if tls_ca is None:
            raise InvalidRequestError("a name of the server's certificate needs TLS: give tls_ca too")
        options.append(("grpc.ssl_target_name_override", tls_name))
    return Connection(
        ", ".join(addresses),
        _several(addresses) if len(addresses) > 1 else addresses[0],
        tuple(options),
        _credentials(tls_ca, tls_pair),
        (("authorization", f"Bearer {token}"),) if token else (),
        balanced,
    )


def _credentials(tls_ca: Path | str | None, tls_pair: Pair | None) -> grpc.ChannelCredentials | None:
    if tls_ca is None:
        if tls_pair is not None:
            raise InvalidRequestError("a client certificate needs TLS: give tls_ca too")
        return None
    pair = None if tls_pair is None else (Path(tls_pair[0]), Path(tls_pair[1]))
    return grpc.ssl_channel_credentials(None if tls_ca == "" else read_authorities(Path(tls_ca)), *read_pair(pair))


def _several(addresses: list[str]) -> str:
    """The target for several addresses. gRPC takes lists of numbers only, all of IPv4 or all of IPv6."""
    places_by_address = [_look_up(address) for address in addresses]
    for scheme, family in (("ipv4", socket.AF_INET), ("ipv6", socket.AF_INET6)):
        chosen = [[place for kind, place in places if kind == family] for places in places_by_address]
        if all(chosen):
            return f"{scheme}:" + ",".join(dict.fromkeys(place for places in chosen for place in places))
    raise InvalidRequestError(f"{', '.join(addresses)}: several addresses must be all of IPv4 or all of IPv6")


def _look_up(address: str) -> list[tuple[int, str]]:
    if address.startswith(SCHEMES):
        raise InvalidRequestError(f"server address {address!r}: in a list of several, give each as HOST:PORT")
    host, _, port = address.rpartition(":")
    try:
        places = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UnavailableError(f"{address}: the name cannot be looked up: {error.strerror}") from error
    return [(family, f"{place[0]}:{port}" if family == socket.AF_INET else f"[{place[0]}]:{port}")
            for family, _, _, _, place in places]  # fmt: skip
