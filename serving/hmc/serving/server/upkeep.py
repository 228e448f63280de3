"""Work that a server does again and again while it runs, such as reading the tokens file. All of it is supervised here:
an error is logged and counted, and the work is tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from prometheus_client import Counter

from hmc.artifact.errors import HmcError

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 10.0
"""Most seconds until a work that fails again and again is tried again, unless it is done less often anyway."""


class Upkeep:
    """Repeats works until `closing` is set. Lives on one event loop."""

    def __init__(self, closing: asyncio.Event, errors: Counter) -> None:
        """errors: counts them, by the name of the work."""
        self._closing, self._errors = closing, errors
        self._tasks: list[asyncio.Task[None]] = []

    def repeat(self, name: str, work: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Calls `work` now, and again so many seconds after it has ended.

        name: for the log and the metrics. After each error the wait is twice as long as before, up to LONGEST_WAIT_S,
        until the work succeeds.
        """
        self._errors.labels(name)  # begins at 0: otherwise Prometheus could not see the first step
        self._tasks.append(asyncio.create_task(self._repeat(name, work, seconds), name=name))

    async def _repeat(self, name: str, work: Callable[[], Awaitable[object]], seconds: float) -> None:
        wait = seconds
        while not self._closing.is_set():
            try:
                await work()
                wait = seconds
            except Exception as error:  # the next one may do
                wait = max(seconds, min(2 * wait, LONGEST_WAIT_S))
                self._errors.labels(name).inc()
                unknown = not isinstance(error, HmcError)
                log.error("background work %r failed, next try in %g s: %s", name, wait, error, exc_info=unknown)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait)

    async def end(self) -> None:
        """Ends all works, which may be in the middle. Call it when `closing` is set."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
