"""A call that does not come over gRPC: what the server's edge asks of it, and the error that the edge ends it with,
as JSON with the HTTP status of its gRPC status."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from google.protobuf import json_format
from google.rpc import status_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse

from hmc.serving.wire.metadata import TRAILER
from hmc.serving.wire.status import HTTP_STATUS

STATUS_DETAILS = "grpc-status-details-bin"
RETRY_AFTER_S = 1
"""Seconds in `Retry-After` where the refusal names none."""
RETRIED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)


@dataclass
class HttpError(Exception):
    """A call that failed. `status` is the HTTP status; None: the one of `code`."""

    code: grpc.StatusCode
    message: str
    details: list[dict[str, Any]] = field(default_factory=list)
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def http_status(self) -> int:
        """The status line's number."""
        return self.status or HTTP_STATUS[self.code]

    @property
    def fields(self) -> set[str]:
        """The paths of the invalid fields, as the details name them."""
        return {one["field"] for detail in self.details for one in detail.get("fieldViolations", ()) if "field" in one}

    def body(self) -> dict[str, Any]:
        """The JSON of the answer: `code` is the name of the gRPC status."""
        return {"code": self.code.name, "message": self.message, "details": self.details}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.http_status, self.headers)


def invalid(message: str, status: int | None = None) -> HttpError:
    """An INVALID_ARGUMENT. status: the HTTP status; None: 400."""
    return HttpError(grpc.StatusCode.INVALID_ARGUMENT, message, status=status)


def error_of_call(code: grpc.StatusCode, message: str, trailing: Mapping[str, str | bytes]) -> HttpError:
    """The error of a call that ended with this status. trailing: its trailing metadata, which may have details."""
    headers: dict[str, str] = {}
    if code is grpc.StatusCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if code in RETRIED:
        headers["Retry-After"] = str(max(1, math.ceil(_seconds(trailing.get(TRAILER, "")))))
    return HttpError(code, message, _details(trailing.get(STATUS_DETAILS)), headers=headers)


def _seconds(pushback: str | bytes) -> float:
    """The wait that a refusal names; RETRY_AFTER_S if it names none."""
    try:
        milliseconds = float(pushback)
    except ValueError:
        return RETRY_AFTER_S
    return milliseconds / 1000.0 if milliseconds >= 0 else RETRY_AFTER_S


def _details(packed: str | bytes | None) -> list[dict[str, Any]]:
    """The details of a google.rpc.Status as JSON."""
    if not isinstance(packed, bytes):
        return []
    return [json_format.MessageToDict(detail) for detail in status_pb2.Status.FromString(packed).details]


TIMEOUT = "x-timeout-ms"
NOT_METADATA = frozenset({"cookie", "connection", "transfer-encoding", "upgrade", "te", "host", "content-length"})
"""Headers that belong to the connection, or that no call reads."""
MAX_TIMEOUT_MS = 86_400_000
Metadata = Iterable[tuple[str, str | bytes]]


class PlainCall:
    """What gRPC's context of a call is for the other doors. Headers of the request are its metadata, in lower case."""

    def __init__(self, peer: str, metadata: Sequence[tuple[str, str]], timeout_s: float | None = None) -> None:
        """peer: as gRPC writes it, such as `ipv4:127.0.0.1:50000`. timeout_s: seconds that the caller waits."""
        self._peer = peer
        self._metadata = tuple(metadata)
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.charged = False
        """Whether it repeats a call that was counted against the rate of its caller already."""
        self.refused: HttpError | None = None
        """Why the body was not taken, if it was not. Its HTTP status is more exact than that of the gRPC status."""
        self.trailers: dict[str, str | bytes] = {}
        """Metadata of the answer."""

    @classmethod
    def from_request(cls, request: Request, changes: Mapping[str, str] | None = None) -> PlainCall:
        """The call of a request. changes: metadata in place of the request's headers of the same names.

        Raises HttpError if the timeout is not a number of milliseconds.
        """
        sent = {name: value for name, value in request.headers.items() if name not in NOT_METADATA}
        return cls(_peer_of(request), tuple({**sent, **(changes or {})}.items()), _timeout_of(request))

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Pairs of names in lower case and values."""
        return self._metadata

    def peer(self) -> str:
        """The caller's address, such as `ipv4:127.0.0.1:50000`."""
        return self._peer

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        """Names of verified client certificates: none."""
        return {}

    def time_remaining(self) -> float | None:
        """Seconds until the caller's deadline; None if it gave none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Sets what is sent after the answer: pairs of names and values."""
        self.trailers = dict(metadata)

    async def abort(self, code: grpc.StatusCode, message: str, metadata: Metadata = ()) -> NoReturn:
        """Ends the call with this status: raises HttpError. metadata: sent beside what was set."""
        self.trailers |= dict(metadata)
        error = error_of_call(code, message, self.trailers)
        if self.refused is not None:
            error.status = self.refused.status
            error.headers |= self.refused.headers
        raise error

    def headers(self) -> dict[str, str]:
        """Metadata of the answer as headers; binary values are left out."""
        sent = self.trailers.items()
        return {name: value for name, value in sent if isinstance(value, str) and not name.startswith("grpc-")}


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
