"""Which kind of batch runs a mode: one whose search runs on the host, or one whose search runs in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS
from hmc.serving.decoding.job import Job, Mode
from hmc.serving.runtime.sessions import LevelSessions
from hmc.serving.scheduling.batch import Batch, Outcome
from hmc.serving.scheduling.device_batch import DeviceBatch


class RunningBatch(Protocol):
    """The batch of one mode, as a worker uses it."""

    def admit(self, jobs: list[Job], upcoming: Callable[[], list[Job]] = list) -> None:
        """Encodes new sentences; they take part from the next step on. upcoming: returns sentences that wait and will
        probably follow, in their order: a batch may encode some of them together with these, so that less is left to be
        done when they start."""
        ...

    def step(self, undisturbed: Callable[[], bool]) -> Outcome:
        """Runs one step, or several while `undisturbed`."""
        ...

    def close(self) -> None:
        """Gives the memory back. The batch may not be used afterwards."""
        ...


def batch_for(sessions: LevelSessions, mode: Mode, max_rows: int, max_tokens: int) -> RunningBatch:
    """An empty batch of this mode. max_rows, max_tokens: bounds of its caches on a device, see `Chain`. Opens the
    mode's graphs if they are not open; raises InvalidArtifactError, and FailedPreconditionError if a device has too
    little memory."""
    if mode.variant in SEARCH_VARIANTS:
        return DeviceBatch.open(sessions, mode, max_rows, max_tokens)
    return Batch(sessions, mode, max_rows, max_tokens)
