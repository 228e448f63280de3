"""Domain errors and gRPC statuses: one table, read both ways."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
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
    UnauthenticatedError,
    UnavailableError,
)

MAX_MESSAGE = 2000
"""Characters of a status message; longer ones may not fit into the trailers of a response."""

TABLE: tuple[tuple[type[HmcError], grpc.StatusCode], ...] = (
    # The first class of a code is what the client raises for it.
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (LevelNotFoundError, grpc.StatusCode.NOT_FOUND),
    (OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (FailedPreconditionError, grpc.StatusCode.FAILED_PRECONDITION),
    (InvalidArtifactError, grpc.StatusCode.FAILED_PRECONDITION),
    (DeviceUnavailableError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (DeadlineExceededError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (InternalServiceError, grpc.StatusCode.INTERNAL),
)


DEADLINE_SLACK_S = 0.05
"""A client gives up at its deadline by its own clock: a call cancelled this shortly before ours has run out of time."""
time_remaining: ContextVar[Callable[[], float | None] | None] = ContextVar("time_remaining", default=None)
"""Within a call: the seconds until its deadline, None without one."""


def code_of(error: BaseException) -> grpc.StatusCode:
    """The status code of an error; INTERNAL for those that are not the domain's. Whoever leaves a generator early has
    cancelled it, and so has a deadline."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        ask = time_remaining.get()
        left = ask() if ask else None
        late = left is not None and left < DEADLINE_SLACK_S
        return grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
    for kind, code in TABLE:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def message_of(error: BaseException, reference: str = "") -> str:
    """What a client is told. An error that is not the domain's keeps its details to itself, under a reference."""
    if isinstance(error, HmcError):
        text = str(error)
        return text if len(text) <= MAX_MESSAGE else text[:MAX_MESSAGE] + " …"
    return f"this is a bug in the server, not in the request; its log has the details under {reference}"


def new_reference() -> str:
    """A short name under which the log has an unexpected error."""
    return uuid.uuid4().hex[:8]


def error_of(code: grpc.StatusCode, message: str) -> HmcError:
    """The domain error of a status, with the server's message."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        return InvalidRequestError(f"the call is too large ({message}): split it into smaller ones, or use a stream")
    for kind, known in TABLE:
        if known is code:
            return kind(message)  # only classes that take a message come first for their code
    return InternalServiceError(f"{code.name}: {message}")
