"""What calls carry beside their messages: the name of the call, which the client may choose and which the log and the
answer have, and when to send a refused call again."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterable

from hmc.artifact.errors import HmcError, InvalidRequestError, Violation

KEY = "x-request-id"
"""The metadata key, in requests and in trailing metadata."""
ALLOWED = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def new_id() -> str:
    """Makes a random name."""
    return uuid.uuid4().hex


def sent_id(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The request id in the metadata of a call; None if the metadata has none. Raises InvalidRequestError if the name
    is malformed."""
    for key, value in metadata:
        if key == KEY:
            name = value if isinstance(value, str) else ""
            if not ALLOWED.fullmatch(name):
                message = f"{KEY} in the metadata: give 1 to 128 letters, digits and . _ : / + = @ - of ASCII"
                raise InvalidRequestError(message, [Violation(KEY, message)])
            return name
    return None


TRAILER = "grpc-retry-pushback-ms"
"""Milliseconds after which a client with a retry policy tries again; -1: it does not try again."""
ELSEWHERE_S = 0.1
"""Seconds after which a call that a draining server refuses is sent again. Its connection is closed then, so that it
goes to another server."""


def retry_trailers(error: BaseException) -> tuple[tuple[str, str], ...]:
    """The trailers of a call that failed with this error.

    The time is up to twice `retry_after_s`, by chance, so that clients that are refused together do not come together.
    """
    after = error.retry_after_s if isinstance(error, HmcError) else None
    if after is None:
        return ()
    return ((TRAILER, "-1" if after < 0 else str(max(1, round(1000 * after * random.uniform(1, 2))))),)


def retry_after_s(sent: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """Reads `HmcError.retry_after_s` from the trailers of a failed call."""
    for name, value in sent or ():
        if name == TRAILER:
            try:
                return int(value) / 1000
            except ValueError:
                return -1.0  # as gRPC's clients understand it
    return None
