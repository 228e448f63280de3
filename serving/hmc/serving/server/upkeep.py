"""Work that a server does again and again while it runs, such as reading the tokens file or looking for a new version
of a bundle. All of it is supervised here: an error is logged and counted, and the work is tried again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from prometheus_client import Counter

from hmc.artifact.bundle.manifest import read_manifest
from hmc.artifact.errors import HmcError, InvalidArtifactError, LevelNotFoundError
from hmc.serving.levels.host import ModelHost

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 10.0
"""Most seconds until a work that fails again and again is tried again, unless it is done less often anyway."""


class Upkeep:
    """Repeats works until `closing` is set. Lives on one event loop."""

    def __init__(self, closing: asyncio.Event, errors: Counter) -> None:
        """errors: counts them, by the name of the work."""
        self._closing = closing
        self._errors = errors
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


State = tuple[str, tuple[tuple[str, int, int, int], ...]]
"""Where a path leads, and (name, size, time, inode) of every file there."""
FAULTS_OF_FILES = (InvalidArtifactError, LevelNotFoundError)
"""Errors that stay while the files do."""


class BundleWatch:
    """Watches the path of one model's bundle."""

    def __init__(self, host: ModelHost, reload: Callable[[], Awaitable[object]]) -> None:
        """reload: reads the bundle at `host.bundle_path` again. If it raises, the old bundle must stay in service."""
        self._host = host
        self._reload = reload
        self._last: State | None = None
        """What the last look has found."""
        self._tried: State | None = None
        """What was loaded last, or found to be of no use."""

    async def look(self) -> None:
        """Loads what lies at the path if it has another version than the bundle in service.

        Files that change between two looks are still being written, so they are not read. Files that cannot be used
        are logged once and read again when they change. Other errors, such as a lack of memory, are raised, and the
        next look tries again.
        """
        state = await asyncio.to_thread(state_of, self._host.bundle_path)
        last = self._last
        self._last = state
        if state != last or state == self._tried:
            return
        try:
            if await asyncio.to_thread(self._differs):
                await self._reload()
        except FAULTS_OF_FILES as error:
            log.error(
                "model %s: what lies at %s now cannot be served, and the old bundle stays in service: %s",
                self._host.name, self._host.bundle_path, error,
            )  # fmt: skip
        self._tried = state

    def _differs(self) -> bool:
        """Whether another version lies there, or something that cannot be read: reloading says why, and is counted."""
        try:
            return read_manifest(self._host.bundle_path).version != self._host.version
        except FAULTS_OF_FILES:
            return True


def state_of(path: Path) -> State:
    """What distinguishes the files at a path from others that are put there. Nothing is read but names and times."""
    real = path.resolve()
    files = []
    for file in sorted(real.rglob("*")):
        with suppress(OSError):  # it has gone meanwhile
            status = file.stat()
            files.append((str(file.relative_to(real)), status.st_size, status.st_mtime_ns, status.st_ino))
    return str(real), tuple(files)
