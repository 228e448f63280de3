"""What runs the batches of a level, as its workers see it. Pools, graphs and turns of a device stay behind it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.runtime.sessions import DeviceSessions, LevelSessions
from hmc.engine.scheduling.batch import HostBatch, Outcome
from hmc.engine.scheduling.budgets import Budget, PoolBudget, TokenBudget
from hmc.engine.scheduling.device_batch import DeviceBatch
from hmc.engine.scheduling.native_batch import NativeSearchBatch


class RunningBatch(Protocol):
    """The batch of one mode, as a worker uses it."""

    def admit(self, jobs: list[Job], upcoming: Callable[[], list[Job]] = list) -> None:
        """Encodes new sentences; they take part from the next step on. upcoming: returns sentences that wait and will
        probably follow, in their order: a batch may encode some of them together with these, so that less is left to be
        done when they start."""

    def step(self, undisturbed: Callable[[], bool]) -> Outcome:
        """Runs one step, or several while `undisturbed`."""

    def close(self) -> None:
        """Gives the memory back. The batch may not be used afterwards."""


class BatchRunner:
    """Makes the batches of a level on a CPU, in the native executor or in ONNX Runtime."""

    def __init__(self, sessions: LevelSessions, max_rows: int, max_tokens: int) -> None:
        """max_rows, max_tokens: of all batches of a worker together."""
        self.sessions = sessions
        self.max_rows = max_rows
        self.max_tokens = max_tokens

    def budget(self) -> Budget:
        """A new account of the memory of a worker's batches."""
        return TokenBudget(self.max_tokens)

    def batch(self, mode: Mode) -> RunningBatch:
        """An empty batch of this mode. Opens the mode's graphs if they are not open. Raises InvalidArtifactError, and
        FailedPreconditionError if a device has too little memory."""
        if mode.variant in SEARCH_VARIANTS:
            assert isinstance(self.sessions, ProgramSessions)
            together = max(1, self.max_rows // 4 // mode.rows)  # as many as start together, see `AdmissionPolicy`
            return NativeSearchBatch(self.sessions, mode, together)
        return HostBatch(self.sessions, mode, self.max_rows, self.max_tokens)

    def turn(self) -> AbstractContextManager[None]:
        """Within it, what a batch holds of the device may be given back."""
        return capture_lock.shared(self.sessions.device)

    def on_shortage(self, relieve: Callable[[], bool]) -> None:
        """relieve: gives up an empty batch, and returns whether there was one. It is called where memory is short."""


class DeviceRunner(BatchRunner):
    """Makes the batches of a level in device form."""

    sessions: DeviceSessions

    def budget(self) -> Budget:
        return PoolBudget(self.max_rows, self.max_tokens, self.sessions.arch.max_positions)

    def batch(self, mode: Mode) -> RunningBatch:
        if mode.variant in SEARCH_VARIANTS:
            return DeviceBatch.open(self.sessions, mode, self.max_rows, self.max_tokens)
        return HostBatch(self.sessions, mode, self.max_rows, self.max_tokens)

    def on_shortage(self, relieve: Callable[[], bool]) -> None:
        self.sessions.memory.relief = relieve


def runner_of(sessions: LevelSessions, max_rows: int, max_tokens: int = MAX_TOKENS) -> BatchRunner:
    """What makes the batches of a level."""
    kind = DeviceRunner if sessions.device_form else BatchRunner
    return kind(sessions, max_rows, max_tokens)
