"""Loaded levels: a level with its translator, a bundle with its loaded levels, a level leased to a request, and what is
reported of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.bundle.order import Standing
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import LevelWork
from hmc.serving.levels.choosing import LevelCandidate, runs_on
from hmc.serving.levels.controller import AutoController
from hmc.serving.levels.latency import FEW_REQUESTS, FRESH_S, LatencyWindow, RequestTimes, growth
from hmc.serving.levels.memory import byte_shares
from hmc.serving.requests.call import PresentCall
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import (
    LevelBytes,
    LevelInfo,
    LevelList,
    LevelLoad,
    ModelInfo,
    TextProgress,
    Translation,
)
from hmc.serving.text.languages import Languages, with_code
from hmc.serving.translator import Translator

TranslatorFactory = Callable[[Path, Manifest, str], Translator]
"""Loads a level: (path of a validated bundle, its manifest, the level's name) → its translator."""


@dataclass(eq=False)
class Slot:
    """A loaded level. It is freed when it no longer serves and its last request has ended."""

    level: Level
    translator: Translator
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
        urgent = priority.interactive
        candidates = []
        for name in self.choosable(loadable_on):
            p95_ms = times.get(name)
            slot = self.slots.get(name)
            if slot is None:
                candidates.append(LevelCandidate(self.manifest.level(name), p95_ms=p95_ms))
                continue
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
            candidates.append(
                LevelCandidate(slot.level, pending, p95_ms, slot.recent[urgent], slot.calls, expected, failed=failed)
            )
        return candidates

    def choosable(self, loadable_on: str | None = None) -> list[str]:
        """Names of the levels that are loaded or loading. loadable_on: a device. The names of all levels that can be
        loaded on it are then included."""
        if loadable_on is None:
            return [*self.slots, *self.loading]
        fitting = [level.name for level in self.manifest.levels if runs_on(loadable_on, level)]
        return [name for name in fitting if name not in self.unavailable]


class Lease:
    """A level while a request uses it; use it in a `with` block. The level is not freed before the block ends."""

    def __init__(
        self,
        slot: Slot,
        bundle_version: str,
        end: Callable[[Slot], None],
        priority: Priority = Priority.INTERACTIVE,
        *,
        call: PresentCall | None = None,
        model: str = "",
        code: str = "",
        chosen_by: str = "",
        clock: Callable[[], float] = time.monotonic,
        times: RequestTimes | None = None,
    ) -> None:
        """end: called with the slot when the lease ends. priority: of the texts of this lease. call: that needs the
        level; None: nobody's. model: the name of the level's model. code: the token of the target language that each
        text begins with; empty: none. chosen_by: see `Selector.chosen_by`. clock: in seconds. times: get to know how
        long this call takes."""
        self.level = slot.level
        self.bundle_version = bundle_version
        self.slot = slot
        self.call = call or PresentCall()
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
        timed: bool = False,
        line: bool = False,
    ) -> Future[Translation]:
        """Queues a text. Arguments and errors: see `Translator.submit`; and InvalidRequestError for a text that begins
        with the token of another language.

        timed: a text that cannot be translated before the call's deadline is refused. A level that did nothing when the
        first text came accepts all."""
        within_s = self.call.seconds_left() if timed else None
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
            caller=self.call.caller,
            within_s=None if self._found_idle else within_s,
            line=line,
        )
        future.add_done_callback(self._observe)
        return future

    def check_space(self) -> None:
        """Raises OverloadedError if the level's queue is full for the caller."""
        self.slot.translator.check_space(self._priority, self.call.caller)

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


@dataclass(frozen=True)
class LevelStatus(LevelInfo):
    """A level of the served bundle at one moment: its description for callers, and its work."""

    pending: int = 0
    """Texts queued or running."""
    work: LevelWork = field(default_factory=LevelWork)
    """What it has computed since it was loaded. Nothing if it is not loaded."""

    @classmethod
    def read(cls, bundle: LoadedBundle, slots: Mapping[str, Slot], standing: Standing) -> LevelStatus:
        """Reads the status of a level. slots: a copy of `bundle.slots`, which may change meanwhile."""
        level = standing.level
        described = cls.of(standing, is_default=level.name == bundle.default, disk=bundle.disk[level.name])
        slot = slots.get(level.name)
        if slot is None:
            return described
        translator = slot.translator
        memory = byte_shares({name: other.translator.weights for name, other in slots.items()})
        on_devices = byte_shares({name: other.translator.device_bytes for name, other in slots.items()})
        return replace(
            described,
            loaded=True,
            latency=slot.latency.summary(),
            memory=memory[level.name],
            failure=translator.failure or "",
            device_memory=on_devices[level.name] if translator.device_use else None,
            device=translator.device,
            pending=translator.pending,
            work=translator.work,
        )


@dataclass(frozen=True)
class HostStatus:
    """The served bundle at one moment."""

    manifest: Manifest
    path: Path
    device: str
    """Where its levels run: `cpu` or `cuda:0`; several names, separated by commas, if they run on several devices."""
    levels: tuple[LevelStatus, ...]
    """All levels of the bundle, loaded or not, in their order (`hmc.artifact.bundle.order`)."""
    model: str
    """The name of the model."""
    languages: Languages
    devices: tuple[DeviceUse, ...] = ()
    """The CUDA devices that loaded levels use."""

    def listed(self, memory_bytes: int = 0) -> LevelList:
        """The levels as callers of the service see them. memory_bytes: memory of this process."""
        languages = self.manifest.source_language, self.manifest.target_language
        return LevelList(self.levels, self.manifest.version, *languages, self.device, memory_bytes, self.devices)

    def loads(self) -> list[LevelLoad]:
        """What the loaded levels do now."""
        return [
            LevelLoad(
                self.model, level.name, level.work.waiting, level.work.queue_size, level.work.workers,
                level.work.max_rows, level.work.batches, level.memory, level.device_memory, level.failure,
            )
            for level in self.levels
            if level.loaded
        ]  # fmt: skip

    def info(self) -> ModelInfo:
        """The model as callers of the service see it."""
        loaded = sum(level.loaded for level in self.levels)
        return ModelInfo(self.model, self.languages.source, self.languages.targets, self.manifest.version, loaded)
