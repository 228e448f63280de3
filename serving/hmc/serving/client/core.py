"""What both clients know of their server: its connections, and whose turn it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

from grpc_health.v1 import health_pb2_grpc

from hmc.serving.client.calls import Call
from hmc.serving.client.connection import Addresses, Pair, connection
from hmc.serving.client.failures import Attempts, Retry
from hmc.v1 import translation_pb2_grpc as rpc


class ClientCore:
    """A client without the sending: `Client` and `AsyncClient` send the messages that it makes, and wait as long as it
    says."""

    _grpc: ClassVar[Any]
    """What makes channels: `grpc` or `grpc.aio`."""

    def __init__(
        self,
        address: Addresses,
        *,
        token: str | None = None,
        tls_ca: Path | str | None = None,
        tls_pair: Pair | None = None,
        tls_name: str | None = None,
        retry: Retry | None = None,
        connections: int = 1,
    ) -> None:
        """address: `host:port`, or a gRPC name such as `unix:PATH`. A list of several, or a name that begins with
        `dns:`, is one service: calls take turns over its servers, and none goes to a server whose health is not
        SERVING. token: sent with every call as a bearer token. tls_ca: PEM file of the authorities to trust; "" trusts
        those of the system; None connects without TLS. Several servers need certificates for the host of the first
        address. tls_pair: PEM files of the client's certificate chain and its key, for a server that asks for them
        (mutual TLS). tls_name: a name that the server's certificate holds, where it does not hold that of the address.
        retry: when calls are sent again; None: the defaults of `Retry`.
        connections: how many to each server; calls take turns over them. More than one reaches several processes behind
        one port (`hmc serve --processes`).

        Connects at the first call. Raises InvalidRequestError if the address or the token is malformed, and if a PEM
        file cannot be used.
        """
        self._connection = connection(address, token, tls_ca, tls_pair, connections, tls_name)
        self.address = self._connection.name
        self._retry = retry or Retry()
        self._closed = threading.Event()
        self._channels = [self._channel() for _ in range(connections)]
        self._turns: Iterator[Any] = cycle([rpc.TranslationServiceStub(channel) for channel in self._channels])
        self._admin: Any = rpc.AdminServiceStub(self._channels[0])
        self._health: Any = health_pb2_grpc.HealthStub(self._channels[0])

    def _channel(self) -> Any:
        target = self._connection.target
        options = self._connection.options
        credentials = self._connection.credentials
        if credentials is None:
            return self._grpc.insecure_channel(target, options)
        return self._grpc.secure_channel(target, credentials, options)

    def _sender(self, call: Call[Any]) -> Callable[..., Any]:
        """Sends requests of a call, on the connection whose turn it is: gRPC's method, with the metadata."""
        stub = self._admin if call.admin else next(self._turns)
        return partial(getattr(stub, call.method), metadata=self._connection.metadata_of(call))

    def _attempts(self, call: Call[Any]) -> Attempts:
        return Attempts(self._retry, call.timeout, again=not call.admin)
