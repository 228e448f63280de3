"""Loaded levels: a level with its translator, a bundle with its loaded levels, and a level leased to a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.engine.requests.caller import ANYONE, Caller, Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import LevelWork
from hmc.serving.levels.byte_shares import FileBytes
from hmc.serving.levels.choosing import LevelCandidate, runs_on
from hmc.serving.levels.controller import AutoController
from hmc.serving.levels.languages import Languages, with_code
from hmc.serving.levels.latency import FEW_REQUESTS, FRESH_S, LatencyWindow, RequestTimes, growth
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import LevelBytes, TextProgress, Translation
from hmc.serving.requests.source_side import SourceSide


class LevelTranslator(Protocol):
    """The part of `hmc.serving.Translator` that the host uses. Tests put other translators in its place."""

    @property
    def source(self) -> SourceSide: ...

    @property
    def device(self) -> str: ...

    @property
    def pending(self) -> int: ...

    @property
    def pending_interactive(self) -> int: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def weights(self) -> FileBytes: ...

    @property
    def device_bytes(self) -> FileBytes: ...

    @property
    def device_use(self) -> tuple[DeviceUse, ...]: ...

    @property
    def work(self) -> LevelWork: ...

    def submit(
        self,
        text: str,
        options: DecodeOptions = ...,
        target: Target | None = ...,
        progress: TextProgress | None = ...,
        *,
        priority: Priority = ...,
        caller: Caller = ...,
        within_s: float | None = ...,
        line: bool = ...,
    ) -> Future[Translation]: ...

    def expected_s(self, *, interactive: bool) -> float | None: ...

    def check_space(self, priority: Priority, caller: Caller = ...) -> None: ...

    def call_when_space(self, call: Callable[[], None]) -> None: ...

    def warm_up(self) -> None: ...

    def release_memory(self) -> None: ...

    def close(self, drain: bool = True) -> None: ...


TranslatorFactory = Callable[[Path, Manifest, str], LevelTranslator]
"""Loads a level: (path of a validated bundle, its manifest, the level's name) → its translator."""


@dataclass(eq=False)
class Slot:
    """A loaded level. It is freed when it no longer serves and its last request has ended."""

    level: Level
    translator: LevelTranslator
    users: int = 0
    """Leases that have not ended."""
    latency: LatencyWindow = field(default_factory=LatencyWindow)
    """Of the latest interactive calls."""
    last_used: float = 0.0
    """When the last lease ended, or else when it was loaded, in seconds of the host's clock."""
    recent: dict[bool, LatencyWindow] = field(default_factory=lambda: {i: LatencyWindow(10_000) for i in (True, False)})
    """Interactive or not → latency of all texts of the last moments, for `auto`."""
    calls: LatencyWindow = field(default_factory=lambda: LatencyWindow(10_000))
    """What the interactive calls of the last moments would have taken with a single sentence, for `auto`: a call of
    many sentences takes longer, and does not say that the level is slow."""


@dataclass(eq=False)
class LoadedBundle:
    """One bundle and its loaded levels, until another bundle replaces it."""

    path: Path
    manifest: Manifest
    default: str
    """Name of the default level."""
    disk: dict[str, LevelBytes]
    """Level name → its bytes on disk."""
    languages: Languages
    auto: dict[bool, AutoController]
    """Interactive or not → what chooses the level of such requests with `auto`."""
    times: RequestTimes
    """What interactive calls took at its levels."""
    slots: dict[str, Slot] = field(default_factory=dict)
    """Level name → the loaded level."""
    loading: list[str] = field(default_factory=list)
    """Names of the levels that are still to be loaded, in the order of loading."""
    unavailable: set[str] = field(default_factory=set)
    """Names of the levels whose device is missing. Only a request by name gets an error; selectors skip them."""

    def candidates(
        self, *, priority: Priority, loadable_on: str | None = None, characters: int | None = None
    ) -> list[LevelCandidate]:
        """The levels among which a selector chooses, see `choosable`.

        priority: of the texts to be translated. Interactive texts count only interactive texts as load. characters:
        size of the request. None: no estimate of its time is needed.
        """
        times = {} if characters is None else self.times.p95_ms(characters)
        return [self._candidate(name, priority, times.get(name)) for name in self.choosable(loadable_on)]

    def choosable(self, loadable_on: str | None = None) -> list[str]:
        """Names of the levels that are loaded or loading. loadable_on: a device. The names of all levels that can be
        loaded on it are then included."""
        if loadable_on is None:
            return [*self.slots, *self.loading]
        fitting = [level.name for level in self.manifest.levels if runs_on(loadable_on, level)]
        return [name for name in fitting if name not in self.unavailable]

    def _candidate(self, name: str, priority: Priority, p95_ms: float | None) -> LevelCandidate:
        slot = self.slots.get(name)
        if slot is None:
            return LevelCandidate(self.manifest.level(name), p95_ms=p95_ms)
        urgent = priority.interactive
        translator = slot.translator
        pending = translator.pending_interactive if urgent else translator.pending
        failed = translator.failure is not None
        if pending:
            expected = translator.expected_s(interactive=urgent)
        else:  # what is known of the pace may be that of a call of many sentences, and nobody waits for it now
            lone = slot.calls.summary(within_s=FRESH_S)
            expected = lone.p50_ms / 1000.0 if lone and lone.requests >= FEW_REQUESTS else None
        if pending and expected is not None:  # the line is longer than it was for those who have their answers
            p95_ms = max(p95_ms or 0.0, 1000.0 * expected)
        return LevelCandidate(slot.level, pending, p95_ms, slot.recent[urgent], slot.calls, expected, failed=failed)


class Lease:
    """A level while a request uses it; use it in a `with` block. The level is not freed before the block ends."""

    def __init__(
        self,
        slot: Slot,
        bundle_version: str,
        end: Callable[[Slot], None],
        priority: Priority = Priority.INTERACTIVE,
        *,
        model: str = "",
        code: str = "",
        chosen_by: str = "",
        clock: Callable[[], float] = time.monotonic,
        times: RequestTimes | None = None,
    ) -> None:
        """end: called with the slot when the lease ends. priority: of the texts of this lease. model: the name of the
        level's model. code: the token of the target language that each text begins with; empty: none.
        chosen_by: see `Selector.chosen_by`. clock: in seconds. times: get to know how long this call takes."""
        self.level = slot.level
        self.bundle_version = bundle_version
        self.slot = slot
        self._end = end
        self._priority = priority
        self.model = model
        self.code = code
        self.chosen_by = chosen_by
        self._found_idle: bool | None = None
        self._clock = clock
        self._times = times
        self._characters = 0
        self._whole = True
        """Of the texts that were submitted; whether all of them were translated."""
        self._begun = 0.0
        """When the first text was submitted."""
        self._ended: float | None = None
        """When the last text so far was translated; None: none was."""

    def submit(
        self,
        text: str,
        options: DecodeOptions,
        target: Target | None = None,
        progress: TextProgress | None = None,
        *,
        caller: Caller = ANYONE,
        within_s: float | None = None,
        line: bool = False,
    ) -> Future[Translation]:
        """Queues a text. Arguments and errors: see `Translator.submit`; and InvalidRequestError for a text that begins
        with the token of another language. A level that did nothing when the first text came accepts all, however short
        `within_s` is."""
        if within_s is not None and self._found_idle is None:
            self._found_idle = not self.slot.translator.pending
        if not self._characters:
            self._begun = self._clock()
        self._characters += len(text)
        future = self.slot.translator.submit(
            with_code(text, self.code),
            options,
            target,
            progress,
            priority=self._priority,
            caller=caller,
            within_s=None if self._found_idle else within_s,
            line=line,
        )
        future.add_done_callback(self._observe)
        return future

    def check_space(self, caller: Caller) -> None:
        """Raises OverloadedError if the level's queue is full for this caller."""
        self.slot.translator.check_space(self._priority, caller)

    def _observe(self, future: Future[Translation]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._whole = False
            return
        done = future.result()
        if not done.blank:
            self.slot.recent[self._priority.interactive].add(done.queue_s + done.compute_s)
            self._ended = self._clock()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the lease, as leaving the `with` block does. Call one of them, once. An interactive call of which every
        text was translated then counts in the latency of the level."""
        if self._priority.interactive and self._whole and self._ended is not None:
            seconds = self._ended - self._begun
            self.slot.latency.add(seconds)
            self.slot.calls.add(seconds / growth(self._characters))
            if self._times is not None:
                self._times.add(self.level.name, self._characters, seconds)
        self._end(self.slot)
