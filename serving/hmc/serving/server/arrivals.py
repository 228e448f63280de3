"""Brings results from other threads to an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from hmc.artifact.errors import UnavailableError
from hmc.serving.levels.loading import SHUTTING_DOWN

Result = TypeVar("Result")


class Arrivals:
    """As `asyncio.wrap_future`, but the event loop is woken once for all results that have come until it looks. Lives
    on one event loop."""

    def __init__(self) -> None:
        self._ended: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False

    def wrap(self, future: Future[Result]) -> asyncio.Future[Result]:
        """Ends as `future` does, with its result or its error. Ending it earlier cancels `future`. A `future` that
        something else has cancelled, such as a level that was stopped, ends it with UnavailableError."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Result] = loop.create_future()
        waiting.add_done_callback(partial(_pass_cancellation, future))
        future.add_done_callback(partial(self._put, loop, waiting))
        return waiting

    def _put(self, loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[Any], future: Future[Any]) -> None:
        """May be called from any thread."""
        self._ended.append((waiting, future))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed, and so nothing waits
                loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._woken = False  # before the look: what comes after the last look wakes the loop again
        while self._ended:
            waiting, future = self._ended.popleft()
            if waiting.done():
                continue
            if future.cancelled():
                waiting.set_exception(UnavailableError(SHUTTING_DOWN))
            elif (error := future.exception()) is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(future.result())


def _pass_cancellation(future: Future[Any], _: asyncio.Future[Any]) -> None:
    future.cancel()  # does nothing to one that has ended
