"""Turns what gRPC raises in the client into the errors of HMC."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from hmc.artifact.errors import UnavailableError
from hmc.serving.wire.metadata import retry_after_s
from hmc.serving.wire.status import error_of, violations_of


@contextmanager
def domain_errors(address: str, request_id: str | None = None) -> Iterator[None]:
    """In the `with` block, an error of gRPC becomes the HmcError of its status.

    address: of the server. request_id: the name of the call, which the error gets.
    """
    try:
        yield
    except grpc.RpcError as error:
        code, message = status_of(error)
        if code is grpc.StatusCode.UNAVAILABLE:
            message = _no_connection(address, message) or f"{address}: {message}"
        refused = retry_after_s(sent_trailers(error))
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and refused is None:  # else the server says more
            message = f"{address} gave no answer in time; allow more, send less, or choose a level with fewer heads"
        raised = error_of(code, message, violations_of(error))
        raised.retry_after_s, raised.request_id = refused, request_id
        raise raised from error
    except (ValueError, grpc.aio.UsageError) as error:  # gRPC raises these for a closed channel
        if "closed" not in str(error).lower():
            raise
        raise UnavailableError(f"this client of {address} is closed: open another one", -1.0) from error


def why_not_ready(address: str, error: grpc.RpcError) -> str:
    """Why the health of a server could not be asked for; empty if no answer came in time."""
    code, message = status_of(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ""
    return _no_connection(address, message) or message


def _no_connection(address: str, message: str) -> str:
    """What gRPC's message about a connection means, and what to do; empty for other messages."""
    if "http1" in message:
        return (
            f"{address} speaks HTTP, and this is a client of gRPC: give the port of gRPC, which is that of "
            "`hmc serve --port` (50051 by default), not of --http-port"
        )
    if "connect" not in message:
        return ""
    nothing = "nothing answers there" if "Connection refused" in message else message
    return (
        f"{address}: {nothing}; is `hmc serve` running there, and do both sides use TLS, or neither? "
        "`hmc serve BUNDLE` starts a server"
    )


def sent_trailers(error: grpc.RpcError) -> Iterable[tuple[str, str | bytes]] | None:
    """The trailers of a failed call."""
    call: Any = error
    return call.trailing_metadata()  # type: ignore[no-any-return]  # of pairs


def status_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """The status code of a failed call and the server's message."""
    call: Any = error  # gRPC raises the call itself as the error
    return call.code(), call.details() or "no reason given"
