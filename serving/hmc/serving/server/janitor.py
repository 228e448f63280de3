"""Looks for levels that nobody uses, again and again, until the server drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

log = logging.getLogger(__name__)

ROUNDS = 4
"""Rounds in the time after which an idle level is unloaded: it is so at most a quarter of that time late."""
LONGEST_S = 60.0


async def clean(sweep: Callable[[float], Awaitable[None]], unused_s: float, closing: asyncio.Event) -> None:
    """Calls `sweep(unused_s)` again and again until `closing` is set. An error of one call is logged, and ends nothing.

    unused_s: seconds after which a level that nobody uses is unloaded.
    """
    pause = min(unused_s / ROUNDS, LONGEST_S)
    while not closing.is_set():
        try:
            await sweep(unused_s)
        except Exception:
            log.exception("idle levels could not be unloaded; it is tried again")
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), pause)
