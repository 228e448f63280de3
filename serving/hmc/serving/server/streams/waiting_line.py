"""A fair order of the texts of streams at a full queue."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future

from hmc.artifact.errors import OverloadedError
from hmc.serving.levels.slots import Lease
from hmc.serving.requests.caller import ANYONE, Caller
from hmc.serving.requests.options import DecodeOptions, Target
from hmc.serving.requests.results import Translation


class WaitingLine:
    """Texts of one caller's streams that wait for a free place in the queue of one level. Lives on one event loop.

    Each stream has one text in the line at a time, so streams get free places in turn, one text each.
    """

    def __init__(self, caller: Caller = ANYONE) -> None:
        self._caller = caller
        self._first = asyncio.Lock()  # held by the first text in the line; a lock is first come, first served
        self._freed = asyncio.Event()
        self._subscribed = False

    async def submit(self, lease: Lease, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
        """Queues a text as soon as the queue has a free place. Errors: see `Lease.submit`, except OverloadedError."""
        async with self._first:
            while True:
                try:
                    return lease.submit(text, options, target, caller=self._caller)
                except OverloadedError:
                    await self._wait(lease)

    async def _wait(self, lease: Lease) -> None:
        """Returns when the queue has a free place, or when the level closes.

        Cancelling it leaves its subscription in place, so that a level never holds more than one of this line.
        """
        if not self._subscribed:
            self._subscribed = True
            self._freed.clear()
            loop = asyncio.get_running_loop()

            def notify() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and so nothing waits
                    loop.call_soon_threadsafe(self._notify)

            lease.slot.translator.call_when_space(notify)
        await self._freed.wait()

    def _notify(self) -> None:
        self._subscribed = False
        self._freed.set()
