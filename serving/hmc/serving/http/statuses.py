"""Errors of calls as JSON, with the HTTP status of their gRPC status."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from starlette.responses import JSONResponse

from hmc.serving.wire.status import HTTP_STATUS

STATUS_DETAILS, PUSHBACK = "grpc-status-details-bin", "grpc-retry-pushback-ms"
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
    details, wait_s = _details(trailing.get(STATUS_DETAILS))
    pushback = trailing.get(PUSHBACK)
    if pushback is not None:
        wait_s = _seconds(pushback) or wait_s
    headers: dict[str, str] = {}
    if code is grpc.StatusCode.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if code in RETRIED:
        headers["Retry-After"] = str(max(1, math.ceil(wait_s if wait_s is not None else RETRY_AFTER_S)))
    return HttpError(code, message, details, headers=headers)


def _seconds(pushback: str | bytes) -> float | None:
    try:
        milliseconds = float(pushback)
    except ValueError:
        return None
    return milliseconds / 1000.0 if milliseconds >= 0 else None


def _details(packed: str | bytes | None) -> tuple[list[dict[str, Any]], float | None]:
    """The details of a google.rpc.Status as JSON, and the seconds of its RetryInfo."""
    if not isinstance(packed, bytes):
        return [], None
    details, wait_s = [], None
    for detail in status_pb2.Status.FromString(packed).details:
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            wait_s = retry.retry_delay.ToTimedelta().total_seconds()
        try:
            details.append(json_format.MessageToDict(detail))
        except TypeError:  # a message whose type this server does not know
            details.append({"@type": detail.type_url})
    return details, wait_s
