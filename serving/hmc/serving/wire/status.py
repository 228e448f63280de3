"""Maps the errors of HMC to gRPC statuses and back, by one table."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import grpc

from hmc.artifact.errors import (
    DeadlineExceededError,
    DeviceUnavailableError,
    FailedPreconditionError,
    HmcError,
    InternalServiceError,
    InvalidArtifactError,
    InvalidRequestError,
    LevelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    Violation,
)

MAX_MESSAGE = 2000
"""Bytes of the longest status message as gRPC writes it: three for each byte of UTF-8 that is not printable ASCII. A
longer one may not fit into the trailers of a response."""

TABLE: tuple[tuple[type[HmcError], grpc.StatusCode], ...] = (
    # Several classes may have one code. The client raises the first of them.
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (LevelNotFoundError, grpc.StatusCode.NOT_FOUND),
    (OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (FailedPreconditionError, grpc.StatusCode.FAILED_PRECONDITION),
    (InvalidArtifactError, grpc.StatusCode.FAILED_PRECONDITION),
    (DeviceUnavailableError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (DeadlineExceededError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (InternalServiceError, grpc.StatusCode.INTERNAL),
)


DEADLINE_SLACK_S = 0.05
"""A call that is cancelled this many seconds before its deadline, or later, counts as DEADLINE_EXCEEDED. The client's
clock may be ahead of the server's, so it may give up before the server sees the deadline pass."""
time_remaining: ContextVar[Callable[[], float | None] | None] = ContextVar("time_remaining", default=None)
"""Set within a call: a function that returns the seconds until its deadline, or None if it has none."""


def seconds_left() -> float | None:
    """Seconds until the deadline of the present call; None if it has none, and outside of calls."""
    remaining = time_remaining.get()
    return remaining() if remaining else None


def code_of(error: BaseException) -> grpc.StatusCode:
    """The status code of an error: INTERNAL unless it is in `TABLE`.

    A cancelled call, and a generator that is closed early, is DEADLINE_EXCEEDED if the deadline of the call has passed,
    and CANCELLED otherwise.
    """
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        left = seconds_left()
        late = left is not None and left < DEADLINE_SLACK_S
        return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
    for kind, code in TABLE:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def message_of(error: BaseException, reference: str = "") -> str:
    """The message that the client gets.

    An error that is not an HmcError is a bug. Its details stay in the server's log; the client gets `reference`, by
    which the log entry can be found.
    """
    if isinstance(error, HmcError):
        return cut(str(error), MAX_MESSAGE)
    return f"the server has a bug, the request is not at fault; the server's log has the details under {reference}"


def cut(text: str, size: int) -> str:
    """Cuts a text so that gRPC writes it in at most `size` bytes of metadata; what is cut off is shown as " …"."""
    left = size
    for index, character in enumerate(text):
        left -= 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if left < 0:
            return text[: max(0, index - 10)] + " …"
    return text


def new_reference() -> str:
    """Makes a short random name by which an unexpected error can be found in the log."""
    return uuid.uuid4().hex[:8]


def error_of(code: grpc.StatusCode, message: str, violations: Sequence[Violation] = ()) -> HmcError:
    """The error that the client raises for a status. message, violations: the server's."""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequestError(message, violations)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return InvalidRequestError(f"the call is too large ({message}): split it into smaller ones, or use a stream")
    for kind, known in TABLE:
        if known is code:
            return kind(message)  # the first class of each code takes a message only
    return InternalServiceError(f"{code.name}: {message}")
