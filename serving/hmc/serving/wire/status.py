"""The statuses of calls: errors as gRPC and HTTP statuses with their details, and what each means to a caller.
docs/statuses.md is written from here."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

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
from hmc.serving.requests.call import present_call

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


def code_of(error: BaseException) -> grpc.StatusCode:
    """The status code of an error: INTERNAL unless it is in `TABLE`.

    A cancelled call, and a generator that is closed early, is DEADLINE_EXCEEDED if the deadline of the call has passed,
    and CANCELLED otherwise.
    """
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        seconds = present_call().seconds_left()
        late = seconds is not None and seconds < DEADLINE_SLACK_S
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
    """Cuts a text so that gRPC writes it in at most `size` bytes of metadata; " …" stands for the part that is cut
    off."""
    free = size
    for index, character in enumerate(text):
        free -= 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if free < 0:
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


HTTP_STATUS: Mapping[grpc.StatusCode, int] = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.UNAUTHENTICATED: 401,
}
"""As google.rpc.Code maps them."""


@dataclass(frozen=True)
class Meaning:
    """A status: when a call ends with it, and what the caller should do."""

    when: str
    what_to_do: str
    again: str
    """Whether the same request may be sent again: `yes`, `later` (after a pause) or `no`."""


Code = grpc.StatusCode
MEANINGS: dict[grpc.StatusCode, Meaning] = {
    Code.OK: Meaning("The call succeeded.", "Nothing.", "–"),
    Code.CANCELLED: Meaning(
        "The caller cancelled the call; its work is dropped at the next decoder step. Or the server was stopping "
        "before it had taken the call (grpc/grpc#41785).",
        "Nothing. If you did not cancel, send it again.",
        "yes",
    ),
    Code.INVALID_ARGUMENT: Meaning(
        "A value of the request is out of its range, a text is too long or not UTF-8, the answer would be too large, "
        "or the bytes are not a message of the method.",
        "Mend the values that the message names. The details list each field (`google.rpc.BadRequest`).",
        "no",
    ),
    Code.DEADLINE_EXCEEDED: Meaning(
        "The deadline of the call, or `timeout_ms` of a stream's text, passed. The work is dropped at the next decoder "
        "step. Or the server saw at once, from its measured speed, that the deadline cannot be met.",
        "Allow more time, send less, or choose a level with fewer heads.",
        "no",
    ),
    Code.NOT_FOUND: Meaning(
        "No level or model has the name, or no level meets the selector.",
        "Take one of the names that the message lists; `ListLevels` and `ListModels` list them too.",
        "no",
    ),
    Code.RESOURCE_EXHAUSTED: Meaning(
        "The queue is full, levels in use leave no memory for the level, the caller's rate is used up, or the message "
        "exceeds `--max-message-mib` or `--max-metadata-kib`. Texts of a stream wait instead.",
        "Send again after `grpc-retry-pushback-ms` (a trailer), or choose a cheaper level. Split a message that is too "
        "large.",
        "later",
    ),
    Code.FAILED_PRECONDITION: Meaning(
        "The level is not loaded; or it is the default level and cannot be unloaded; or the bundle of a reload is not "
        "whole; or a file of the bundle has changed since it was checked; or the device cannot be used or has no room.",
        "Change what the message names first, such as loading the level.",
        "no",
    ),
    Code.UNIMPLEMENTED: Meaning(
        "The server does not know the method: it is older than the client, or the name is wrong.",
        "Upgrade the server, or use another call.",
        "no",
    ),
    Code.INTERNAL: Meaning(
        "The server has a bug. Or the level stopped and restarts. Or the model's scores of the text are not finite.",
        "Report a bug with the reference in the message; the server's log has the details under it. If the level "
        "restarted, send the text again. If scores are not finite, choose another level and compile the bundle again.",
        "later",
    ),
    Code.UNAVAILABLE: Meaning(
        "The server cannot be reached, is starting, or is shutting down.",
        "Try again, or at another server. While levels load, the levels that are loaded already serve.",
        "later",
    ),
    Code.UNAUTHENTICATED: Meaning(
        "The server requires a token, and the call has no token or a wrong one; or the token was taken out of the file "
        "while a stream went on.",
        "Send `authorization: Bearer TOKEN` in the metadata.",
        "no",
    ),
    Code.PERMISSION_DENIED: Meaning(
        "The caller lacks the scope that the message names; or the bundle of a reload is not below `--bundle-root`.",
        "Ask for a token with the scope, or put the bundle below the folder that the message names.",
        "no",
    ),
}
EVERY_CALL = {
    Code.OK, Code.CANCELLED, Code.INVALID_ARGUMENT, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.INTERNAL,
    Code.UNAVAILABLE, Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.RESOURCE_EXHAUSTED,
}  # fmt: skip
"""Statuses that every call can end with. RESOURCE_EXHAUSTED: any request can be larger than a message may be."""
WITH_A_LEVEL = EVERY_CALL | {Code.NOT_FOUND, Code.FAILED_PRECONDITION}
STATUSES_OF_CALLS: dict[str, set[grpc.StatusCode]] = {
    "Translate": WITH_A_LEVEL,
    "TranslateStream": EVERY_CALL,  # an error of one text is in its answer
    "TranslateTokens": WITH_A_LEVEL,
    "TranslateDocument": WITH_A_LEVEL,
    "Score": WITH_A_LEVEL,
    "ListLevels": EVERY_CALL | {Code.NOT_FOUND},
    "ListModels": EVERY_CALL,
    "LoadLevel": WITH_A_LEVEL,
    "UnloadLevel": WITH_A_LEVEL,
    "Reload": WITH_A_LEVEL,
    "SetDefaultLevel": WITH_A_LEVEL,
    "GetStatus": EVERY_CALL | {Code.NOT_FOUND},
}

MAX_DETAILS = 2000
"""Bytes of the longest details. With the message they must fit into the trailers, of which clients read 8 KiB."""
MAX_DESCRIPTION = 300
"""Bytes of the longest description in them, see `cut`."""


def trailers_of(error: BaseException, message: str) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata that ends a call with the violations of `error`; empty if it has none. message: of the status.

    Violations that do not fit are left out; the last one then says how many.
    """
    if not isinstance(error, InvalidRequestError) or not error.violations:
        return ()
    request = BadRequest()
    for index, violation in enumerate(error.violations):
        request.field_violations.add(field=cut(violation.field, MAX_DESCRIPTION), description=_cut(violation))
        if request.ByteSize() > MAX_DETAILS:
            del request.field_violations[-1]
            rest = len(error.violations) - index
            request.field_violations.add(field="", description=f"{rest} more: mend these first")
            break
    status = Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message=message)
    status.details.add().Pack(request)
    return tuple(rpc_status.to_status(status).trailing_metadata)


def _cut(violation: Violation) -> str:
    return cut(violation.description, MAX_DESCRIPTION)


def violations_of(error: grpc.RpcError) -> tuple[Violation, ...]:
    """The violations in the details of a failed call; empty if it has none, or if they cannot be read."""
    call: Any = error  # gRPC raises the call itself as the error
    try:
        status = rpc_status.from_call(call)
    except ValueError:  # a proxy has changed the message or the code
        return ()
    request = BadRequest()
    for detail in status.details if status else ():
        if detail.Is(BadRequest.DESCRIPTOR):
            detail.Unpack(request)
    return tuple(Violation(one.field, one.description) for one in request.field_violations)
