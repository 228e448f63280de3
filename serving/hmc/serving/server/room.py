"""Where texts of streams wait for room at a level: the streams take turns, a text each."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future

from hmc.artifact.errors import OverloadedError
from hmc.serving.loaded import Lease
from hmc.serving.options import DecodeOptions, Target
from hmc.serving.results import Translation


class Room:
    """Of one level, on one event loop. A stream whose texts come here one by one has one place in the line."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # who waits gets it in the order of coming
        self._came = asyncio.Event()
        self._asked = False

    async def submit(self, lease: Lease, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
        """Queues a text as soon as there is room; errors as `Lease.submit`, but for OverloadedError."""
        async with self._turn:
            while True:
                try:
                    return lease.submit(text, options, target, bulk=True)
                except OverloadedError:
                    await self._wait(lease)

    async def _wait(self, lease: Lease) -> None:
        """Until there is room or the level closes. One question is under way at most, whoever gives up waiting."""
        if not self._asked:
            self._asked = True
            self._came.clear()
            loop = asyncio.get_running_loop()

            def tell() -> None:
                with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                    loop.call_soon_threadsafe(self._tell)

            lease.slot.translator.call_when_room(tell)
        await self._came.wait()

    def _tell(self) -> None:
        self._asked = False
        self._came.set()
