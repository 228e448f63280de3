"""What the failure of a call means: the error of HMC for what gRPC raises, whether the call is sent again, and when."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from hmc.artifact.errors import DeadlineExceededError, HmcError, InvalidRequestError, OverloadedError, UnavailableError
from hmc.engine.requests.checks import check_whole, check_within
from hmc.serving.wire.metadata import retry_after_s
from hmc.serving.wire.status import error_of, violations_of

OTHER_PROTOCOL = "speaks HTTP, and this is a client of gRPC"
"""What is said of a port that never answers a call of gRPC."""
MAX_TIMEOUT_S = 1e9
"""A timeout of more seconds than this means no timeout: gRPC cannot represent much larger ones."""


@contextmanager
def domain_errors(address: str, request_id: str | None = None) -> Iterator[None]:
    """In the `with` block, an error of gRPC becomes the HmcError of its status.

    address: of the server. request_id: the name of the call, which the error gets.
    """
    try:
        yield
    except grpc.RpcError as error:
        code, message = status_of(error)
        if code is grpc.StatusCode.CANCELLED:  # by the server, as nobody here waits for a call that was cancelled here
            code = grpc.StatusCode.UNAVAILABLE
            message = "the server ended the call before its answer"
        if code is grpc.StatusCode.UNAVAILABLE:
            message = _no_connection(address, message) or f"{address}: {message}"
        refused = retry_after_s(sent_trailers(error))
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and refused is None:  # else the server says more
            message = f"{address} gave no answer in time; allow more, send less, or choose a level with fewer heads"
        if OTHER_PROTOCOL in message:
            refused = -1.0
        raised = error_of(code, message, violations_of(error))
        raised.retry_after_s = refused
        raised.request_id = request_id
        raise raised from error
    except (ValueError, grpc.aio.UsageError) as error:  # gRPC raises these for a closed channel
        if "closed" not in str(error).lower():
            raise
        raise UnavailableError(f"this client of {address} is closed: open another one", -1.0) from error


def why_not_ready(address: str, error: grpc.RpcError) -> str:
    """Why a request for the health of a server failed; empty if no answer came in time."""
    code, message = status_of(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return ""
    return _no_connection(address, message) or message


def _no_connection(address: str, message: str) -> str:
    """What gRPC's message about a connection means, and what to do; empty for other messages."""
    if "http1" in message:
        return (
            f"{address} {OTHER_PROTOCOL}: give the port of gRPC, which is that of `hmc serve --port` (50051 by "
            "default), not of --http-port"
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


@dataclass(frozen=True)
class Retry:
    """How often a call is sent, and how long the client waits in between.

    A call is sent again after UNAVAILABLE, RESOURCE_EXHAUSTED, a DEADLINE_EXCEEDED that says when to come again, and a
    CANCELLED that is not the caller's own: the server then ended the call.
    The server's `grpc-retry-pushback-ms` overrides the waits here. Calls that change a server are never sent again.

    Raises InvalidRequestError if a value is out of range.
    """

    attempts: int = 4
    """Most times that a call is sent, the first one included. 1: never again."""
    first_s: float = 0.1
    """Longest wait before the second attempt, in seconds. Each further wait may be twice as long as the last. The wait
    is between half of this and all of it, by chance, so that clients do not come back together."""
    most_s: float = 5.0
    """Longest wait of the client's own, in seconds."""
    patience_s: float = 60.0
    """If the server asks for a longer wait than this, in seconds, its error is raised."""

    def __post_init__(self) -> None:
        check_whole("attempts", self.attempts, 1, 1000)
        for name in ("first_s", "most_s", "patience_s"):
            check_within(name, getattr(self, name), 0.0, 86400.0)


ONCE = Retry(attempts=1)
"""Every call is sent once."""


class Attempts:
    """The attempts of one call, which share its deadline."""

    def __init__(self, retry: Retry, timeout: float | None, again: bool = True) -> None:
        """timeout: seconds for all attempts and the waits between them; None: no limit. again: whether the call may be
        sent again at all. Raises InvalidRequestError if `timeout` is not above 0."""
        if timeout is not None and not timeout > 0:  # also refuses NaN
            raise InvalidRequestError(f"timeout {timeout:g}: choose more than 0 seconds, or leave it out")
        limited = timeout is not None and timeout <= MAX_TIMEOUT_S
        self._end = time.monotonic() + timeout if timeout is not None and limited else None
        self._retry = retry
        self._again = again
        self._made = 1

    def seconds_left(self) -> float | None:
        """The seconds that are left of the timeout. None: no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def answered(self) -> None:
        """An answer of a stream has come: it has all its attempts again, for the texts that are left."""
        self._made = 1

    def wait_s(self, error: HmcError) -> float:
        """Seconds to wait before the next attempt. Raises `error` if the call may not be sent again."""
        after = error.retry_after_s
        passes = isinstance(error, UnavailableError | OverloadedError)
        told = isinstance(error, DeadlineExceededError) and after is not None
        if not self._again or not (passes or told) or self._made >= self._retry.attempts:
            raise error
        if after is None:
            longest = min(self._retry.most_s, self._retry.first_s * 2 ** min(self._made - 1, 60))
            after = longest * random.uniform(0.5, 1)
        elif not 0 <= after <= self._retry.patience_s:
            raise error
        seconds_left = self.seconds_left()
        if seconds_left is not None and after >= seconds_left:
            raise error
        self._made += 1
        return after
