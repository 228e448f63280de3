"""Errors of calls as JSON, with the HTTP status of their gRPC status."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import json_format
from google.rpc import status_pb2
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
        """The paths of the fields at fault, as the details name them."""
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
