"""The details of a status: the violations of a request as `google.rpc.BadRequest`."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from hmc.artifact.errors import InvalidRequestError, Violation
from hmc.serving.wire.status import cut

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
