"""When to send a refused call again: the trailer by which gRPC's clients time their retries."""

from __future__ import annotations

import random
from collections.abc import Iterable

from hmc.artifact.errors import HmcError

TRAILER = "grpc-retry-pushback-ms"
"""Milliseconds after which a client with a retry policy tries again; -1: it does not try again."""
ELSEWHERE_S = 0.1
"""Seconds after which a call that a draining server refuses is sent again. Its connection is closed then, so that it
goes to another server."""


def trailers(error: BaseException) -> tuple[tuple[str, str], ...]:
    """The trailers of a call that failed with this error.

    The time is up to twice `retry_after_s`, by chance, so that clients that are refused together do not come together.
    """
    after = error.retry_after_s if isinstance(error, HmcError) else None
    if after is None:
        return ()
    return ((TRAILER, "-1" if after < 0 else str(max(1, round(1000 * after * random.uniform(1, 2))))),)


def retry_after_s(sent: Iterable[tuple[str, str | bytes]] | None) -> float | None:
    """What the trailers of a failed call say, for `HmcError.retry_after_s`."""
    for name, value in sent or ():
        if name == TRAILER:
            try:
                return int(value) / 1000
            except ValueError:
                return -1.0  # as gRPC's clients understand it
    return None
