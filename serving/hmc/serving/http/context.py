"""What a servicer and an interceptor see of a call over HTTP: the part of gRPC's context that they use."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import grpc
from starlette.requests import Request

from hmc.serving.http.statuses import HttpError, error_of_call, invalid

TIMEOUT = "x-timeout-ms"
NOT_METADATA = frozenset({"cookie", "connection", "transfer-encoding", "upgrade", "te", "host", "content-length"})
"""Headers that belong to the connection, or that no call reads."""
MAX_TIMEOUT_MS = 86_400_000
Metadata = Sequence[tuple[str, str | bytes]]


class HttpContext:
    """Stands in for `grpc.aio.ServicerContext`. Headers of the request are its metadata, in lower case."""

    def __init__(self, peer: str, metadata: Sequence[tuple[str, str]], timeout_s: float | None = None) -> None:
        """peer: as gRPC writes it, such as `ipv4:127.0.0.1:50000`. timeout_s: seconds that the caller waits."""
        self._peer, self._metadata = peer, tuple(metadata)
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.refused: HttpError | None = None
        """Why the body was not taken, if it was not. Its HTTP status is more exact than that of the gRPC status."""
        self._code: grpc.StatusCode | None = None
        self._message = ""
        self._initial: dict[str, str | bytes] = {}
        self._trailing: dict[str, str | bytes] = {}

    @classmethod
    def of(cls, request: Request, changes: Mapping[str, str] | None = None) -> HttpContext:
        """The context of a request. changes: metadata in place of the request's headers of the same names.

        Raises HttpError if the timeout is not a number of milliseconds.
        """
        sent = {name: value for name, value in request.headers.items() if name not in NOT_METADATA}
        return cls(_peer_of(request), tuple({**sent, **(changes or {})}.items()), _timeout_of(request))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> None:
        return None

    def peer_identity_key(self) -> None:
        return None

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        return {}

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None if it gave none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        self._code, self._message = code, details
        self.set_trailing_metadata((*self._trailing.items(), *trailing_metadata))
        raise grpc.aio.AbortError

    async def abort_with_status(self, status: Any) -> NoReturn:
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    async def send_initial_metadata(self, initial_metadata: Metadata) -> None:
        self._initial.update(initial_metadata)

    def set_trailing_metadata(self, trailing_metadata: Metadata) -> None:
        self._trailing = dict(trailing_metadata)

    def trailing_metadata(self) -> Metadata:
        return tuple(self._trailing.items())

    def set_code(self, code: grpc.StatusCode) -> None:
        self._code = code

    def set_details(self, details: str) -> None:
        self._message = details

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def details(self) -> str:
        return self._message

    def set_compression(self, compression: grpc.Compression) -> None:
        """Does nothing: answers over HTTP are not compressed."""

    def disable_next_message_compression(self) -> None:
        """Does nothing: answers over HTTP are not compressed."""

    def headers(self) -> dict[str, str]:
        """Metadata of the answer as headers; binary values are left out."""
        sent = {**self._initial, **self._trailing}
        return {name: value for name, value in sent.items() if isinstance(value, str) and not name.startswith("grpc-")}

    def error(self) -> HttpError:
        """The error that the call was aborted with."""
        made = error_of_call(self._code or grpc.StatusCode.UNKNOWN, self._message, self._trailing)
        if self.refused is not None:
            made.status = self.refused.status
            made.headers |= self.refused.headers
        return made


def _peer_of(request: Request) -> str:
    if request.client is None:
        return "unknown"
    host, port = request.client
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return f"{host}:{port}"
    return f"ipv4:{host}:{port}" if version == 4 else f"ipv6:[{host}]:{port}"


def _timeout_of(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= MAX_TIMEOUT_MS and len(text) <= 10):
        raise invalid(f"X-Timeout-Ms {text!r}: give milliseconds, a whole number from 1 to {MAX_TIMEOUT_MS}")
    return int(text) / 1000.0
