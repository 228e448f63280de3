"""What is loaded: a level with its translator, a bundle with its levels, and a level on loan to a request."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from hmc.artifact.bundle import Level, Manifest
from hmc.serving.latency import LatencySummary, LatencyWindow
from hmc.serving.options import DecodeOptions, Target
from hmc.serving.results import Translation
from hmc.serving.selection import Candidate, runs_on
from hmc.serving.shares import Held, Shares


class LevelTranslator(Protocol):
    """What the host needs of `hmc.serving.Translator`."""

    @property
    def device(self) -> str: ...

    @property
    def pending(self) -> int: ...

    @property
    def hurried(self) -> int: ...

    @property
    def weights(self) -> Held: ...

    def submit(
        self,
        text: str,
        options: DecodeOptions = ...,
        target: Target | None = ...,
        progress: Callable[[str], None] | None = ...,
        *,
        patient: bool = ...,
        bulk: bool = ...,
    ) -> Future[Translation]: ...

    def call_when_room(self, call: Callable[[], None]) -> None: ...

    def warm_up(self) -> None: ...

    def rest(self) -> None: ...

    def close(self, drain: bool = True) -> None: ...


TranslatorFactory = Callable[[Path, Manifest, str], LevelTranslator]
"""Loads the level of this name from the bundle at this path, which has been validated."""


@dataclass(frozen=True)
class LevelStatus:
    """A level as it is now."""

    level: Level
    loaded: bool
    is_default: bool
    pending: int
    """Texts queued or running."""
    latency: LatencySummary | None
    """Of texts in a hurry, measured here since the level was loaded; None before the first."""
    disk: Shares
    """Its files, among those of all levels of the bundle."""
    memory: Shares | None
    """Its weights in memory, among those of all loaded levels; None if it is not loaded."""


@dataclass(frozen=True)
class HostStatus:
    """The bundle as it is served now; levels from the best to the cheapest."""

    manifest: Manifest
    path: Path
    device: str
    levels: tuple[LevelStatus, ...]


@dataclass(eq=False)
class Slot:
    """A loaded level. It is freed only when nobody uses it any more."""

    level: Level
    translator: LevelTranslator
    users: int = 0
    latency: LatencyWindow = field(default_factory=LatencyWindow)


@dataclass(eq=False)
class Generation:
    """One bundle, from its load to its replacement."""

    path: Path
    manifest: Manifest
    default: str
    disk: dict[str, Shares]
    slots: dict[str, Slot] = field(default_factory=dict)
    coming: list[str] = field(default_factory=list)
    """Levels that are still to be loaded, in their order."""
    left_out: set[str] = field(default_factory=set)
    """Levels whose device is not there: only who names one hears of it."""

    def candidates(self, *, patient: bool, loadable_on: str | None = None) -> list[Candidate]:
        """Levels that a selector may choose: those that are loaded or coming, or all that can be loaded on a device.
        patient: whether all that is there goes first, or just what is in a hurry."""
        names = [*self.slots, *self.coming]
        if loadable_on is not None:
            fitting = [level.name for level in self.manifest.levels if runs_on(loadable_on, level)]
            names = [name for name in fitting if name not in self.left_out]
        return [self._candidate(name, patient) for name in names]

    def _candidate(self, name: str, patient: bool) -> Candidate:
        slot = self.slots.get(name)
        if slot is None:
            return Candidate(self.manifest.level(name))
        ahead = slot.translator.pending if patient else slot.translator.hurried
        return Candidate(slot.level, ahead, slot.latency)


class Lease:
    """A level while a request uses it: neither unload nor reload frees it before the lease ends."""

    def __init__(self, slot: Slot, bundle_version: str, end: Callable[[Slot], None], patient: bool = False) -> None:
        self.level, self.bundle_version = slot.level, bundle_version
        self.slot, self._end, self._patient = slot, end, patient

    def submit(
        self,
        text: str,
        options: DecodeOptions,
        target: Target | None = None,
        progress: Callable[[str], None] | None = None,
        *,
        bulk: bool = False,
    ) -> Future[Translation]:
        """Queues a text. Arguments and errors as of `Translator.submit`."""
        future = self.slot.translator.submit(text, options, target, progress, patient=self._patient, bulk=bulk)
        if not self._patient:
            future.add_done_callback(self._observe)
        return future

    def _observe(self, future: Future[Translation]) -> None:
        if not future.cancelled() and future.exception() is None:
            done = future.result()
            if done.blank:
                return
            self.slot.latency.add(done.queue_s + done.compute_s)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(self.slot)
