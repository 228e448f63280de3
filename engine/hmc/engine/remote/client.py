"""A front's side: levels whose sentences are decoded in the engine's process."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, VARIANTS, Level, Manifest, Variant
from hmc.artifact.errors import HmcError, UnavailableError
from hmc.artifact.model.architecture import Architecture
from hmc.engine.decoding.constraints import UNCONSTRAINED
from hmc.engine.decoding.job import Job
from hmc.engine.opening import EngineSettings
from hmc.engine.remote.frames import (
    Cancel,
    Certain,
    Close,
    Closed,
    Done,
    FromEngine,
    LevelState,
    Message,
    Open,
    Opened,
    Refused,
    ReleaseMemory,
    States,
    Submit,
    decoded_of,
    error_of,
    pack_options,
)
from hmc.engine.remote.link import Link
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import LevelWork
from hmc.engine.scheduling.level_engine import LevelEngine
from hmc.engine.scheduling.postprocessor import set_exception, set_result
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.engine.scheduling.worker import answer

log = logging.getLogger(__name__)

LOST = "the engine has ended and is started again: try again"
AGAIN_S = 0.05
"""Seconds between two attempts to reach an engine that is started again."""
AHEAD = 2
"""Rows that a front gives the engine ahead, in rows that it decodes together: as many wait there as run, so that it
need not wait for the front between two steps. All others wait in the front's own queue, in their order."""


class RemoteEngines:
    """The engine's process as one front sees it. Make it on an event loop. Levels may be opened from other threads.

    When the connection is lost, all that is under way ends with UnavailableError. Levels stay open: they work again
    when the engine's process does.
    """

    def __init__(self, path: Path) -> None:
        """path: the socket of the engine's process."""
        self._path = path
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._link: Link | None = None
        self._numbers = count(1)
        self._levels: dict[int, RemoteEngine] = {}
        self._opening: dict[int, _Opening] = {}
        self._closing: dict[int, Future[None]] = {}
        self.jobs: dict[int, tuple[RemoteEngine, Job]] = {}
        """Sentence → what has been sent and is not answered."""
        self._following: asyncio.Task[None] | None = None
        self.process_bytes = 0
        """Memory of the engine's process."""

    @property
    def calls_back(self) -> bool:
        """Whether this is the thread of the event loop, which runs the callbacks of futures."""
        return threading.get_ident() == self._thread

    async def start(self) -> None:
        """Connects, and connects again whenever the connection is lost. Raises OSError if nothing listens."""
        await self._connect()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Ends the connection; all that is under way ends with UnavailableError."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        if self._link is not None:
            self._link.close()
            self._lose()

    async def _connect(self) -> None:
        _, link = await self.loop.create_unix_connection(lambda: Link(self._hear), os.fspath(self._path))
        self._link = link
        for level in self._levels.values():
            link.send(level.opens)

    async def _follow(self) -> None:
        while True:
            assert self._link is not None
            await self._link.lost.wait()
            log.error("the connection to the engine is lost")
            self._lose()
            while True:
                try:
                    await self._connect()
                    break
                except OSError:
                    await asyncio.sleep(AGAIN_S)

    def _lose(self) -> None:
        self._link = None
        waiting: list[Future[Any]] = [*(opening.future for opening in self._opening.values()), *self._closing.values()]
        self._opening.clear()
        self._closing.clear()
        for future in waiting:
            set_exception(future, UnavailableError(LOST))
        for level in list(self._levels.values()):
            level.lose()

    # ---- levels ----

    def open_level(self, bundle: Path, manifest: Manifest, level: Level, settings: EngineSettings) -> LevelEngine:
        """Opens a level there. See `hmc.engine.opening.open_engine`; raises UnavailableError too, if the engine's
        process has ended. Not for the event loop: it waits."""
        number = next(self._numbers)
        asked = Open(number, str(bundle.absolute()), manifest.version, level.name, settings)
        opening = _Opening(asked, manifest.architecture, level)
        self._on_loop(partial(self._open, opening))
        return opening.future.result()

    def _open(self, opening: _Opening) -> None:
        if self._link is None:
            set_exception(opening.future, UnavailableError(LOST))
            return
        self._opening[opening.asked.level] = opening
        self._link.send(opening.asked)

    def close_level(self, number: int) -> Future[None]:
        """Closes a level there. The future ends when its memory is free."""
        closing: Future[None] = Future()
        self._on_loop(partial(self._close, number, closing))
        return closing

    def _close(self, number: int, closing: Future[None]) -> None:
        self._levels.pop(number, None)
        if self._link is None:
            set_result(closing, None)
            return
        self._closing[number] = closing
        self._link.send(Close(number))

    # ---- messages ----

    def send(self, messages: Sequence[Message]) -> None:
        """Sends messages in their order, from any thread. If the connection is lost, what they are about fails."""
        if self.calls_back:
            self._send(messages)
        else:
            self._on_loop(partial(self._send, messages))

    def _send(self, messages: Sequence[Message]) -> None:
        link = self._link
        for message in messages:
            if link is not None:
                link.send(message)
            elif isinstance(message, Submit) and (sent := self.jobs.pop(message.sentence, None)) is not None:
                sent[0].ended(sent[1], UnavailableError(LOST))

    def _on_loop(self, call: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError as error:  # the event loop has ended
            raise UnavailableError("the server has ended") from error

    def _hear(self, messages: Sequence[FromEngine]) -> None:
        for message in messages:
            match message:
                case Done():
                    if (sent := self.jobs.pop(message.sentence, None)) is not None:
                        sent[0].ended(sent[1], message)
                case Certain():
                    if (sent := self.jobs.get(message.sentence)) is not None:
                        sent[1].report(message.ids)
                case Refused(level=0):
                    if (sent := self.jobs.pop(message.sentence, None)) is not None:
                        sent[0].ended(sent[1], error_of(message))
                case _:
                    self._hear_of_level(message)

    def _hear_of_level(self, message: FromEngine) -> None:
        match message:
            case Opened():
                if (opening := self._opening.pop(message.level, None)) is not None:
                    engine = RemoteEngine(self, opening.asked, opening.arch, opening.level, message.state)
                    self._levels[message.level] = engine
                    set_result(opening.future, engine)
                elif (level := self._levels.get(message.level)) is not None:
                    level.opened_again(message.state)
            case Refused():
                if (opening := self._opening.pop(message.level, None)) is not None:
                    set_exception(opening.future, error_of(message))
                elif (level := self._levels.get(message.level)) is not None:
                    level.refused_again(error_of(message))
            case Closed():
                if (closing := self._closing.pop(message.level, None)) is not None:
                    set_result(closing, None)
            case States():
                self.process_bytes = message.process_bytes
                for number, state in message.levels.items():
                    if (level := self._levels.get(number)) is not None:
                        level.note(state)


@dataclass(eq=False)
class _Opening:
    """A level that is being opened."""

    asked: Open
    arch: Architecture
    level: Level
    future: Future[RemoteEngine] = field(default_factory=Future)


class _Traits:
    """What sentences of a remote level are planned by; see `LevelTraits`."""

    def __init__(self, arch: Architecture, level: Level, state: LevelState) -> None:
        self.arch = arch
        self.level = level
        self.scores_wanted = state.scores_wanted
        self.searches_inside = state.searches_inside
        self.any_patience = state.any_patience
        self._variants = frozenset(state.variants)

    def has(self, variant: Variant) -> bool:
        """Whether the level has this variant of the decoder."""
        return variant in self._variants


class RemoteEngine(LevelEngine):
    """A level in the engine's process. Its queue is here; the engine gets what it can start soon."""

    def __init__(
        self, engines: RemoteEngines, opens: Open, arch: Architecture, level: Level, state: LevelState
    ) -> None:
        """opens: the message that opens it, which is sent again to an engine that is started again."""
        super().__init__(_Traits(arch, level, state), WaitingQueue(opens.settings.queue_size), state.max_rows)
        self._engines = engines
        self.opens = opens
        self._state = state
        self.queue.open_variants.update((*VARIANTS, *SEARCH_VARIANTS))  # whether they are open is the engine's care
        self._sent: dict[Future[Any], int] = {}
        """Sentences that the engine has → their numbers. The lock of the queue guards this and the rows."""
        self._rows = {True: 0, False: 0}
        """Interactive or not → rows of the sentences that the engine has."""
        self._most = AHEAD * state.max_rows * state.workers
        self._lost: str | None = None

    # ---- what is known of it ----

    @property
    def pending(self) -> int:
        with self.queue.changed:
            return len(self.queue) + len(self._sent)

    @property
    def pending_interactive(self) -> int:
        with self.queue.changed:
            sent = (self._engines.jobs.get(number) for number in self._sent.values())
            return self.queue.waiting_interactive + sum(
                entry is not None and entry[1].mode.interactive for entry in sent
            )

    @property
    def work(self) -> LevelWork:
        work = self._state.work
        return replace(work, waiting=len(self.queue) + work.waiting, queue_size=self.queue.size)

    @property
    def failure(self) -> str | None:
        return self._lost or self._state.failure

    @property
    def calls_back(self) -> bool:
        return self._engines.calls_back

    @property
    def device(self) -> str:
        return self._state.device

    @property
    def weights(self) -> dict[str, int]:
        return self._state.weights

    @property
    def device_bytes(self) -> dict[str, int]:
        return self._state.device_bytes

    @property
    def device_use(self) -> tuple[DeviceUse, ...]:
        return self._state.device_use

    def warm_up(self) -> None:
        """The engine does so when it opens the level."""

    def release_memory(self) -> None:
        self._engines.send([ReleaseMemory(self.opens.level)])

    def close(self, drain: bool = True) -> None:
        queue = self.queue
        queue.close()
        if not drain:
            with queue.changed:
                futures = [*(job.future for job in queue), *self._sent]
            for future in futures:
                future.cancel()
        if not self.calls_back:
            with queue.changed:
                queue.changed.wait_for(lambda: not len(queue) and not self._sent)
        closing = self._engines.close_level(self.opens.level)
        if not self.calls_back:
            with suppress(UnavailableError):  # the engine has ended, and the level with it
                closing.result()

    # ---- sentences ----

    def _queued(self, variants: set[Variant]) -> None:
        """Sends sentences to the engine while it has rows for them."""
        del variants
        queue = self.queue
        if self._lost is not None:
            for job in queue.clear():
                set_exception(job.future, UnavailableError(LOST))
            return
        with queue.changed:
            before = queue.interactive, queue.others
            starting = queue.take(self._starts)
            starting += queue.take_interactive(self._starts)  # the turn may be that of others, which have no rows left
            messages = [self._message(job) for job in starting]
            if messages:
                queue.looked(*before, idle=len(self._sent) == len(messages))
                queue.announce_space()
        if messages:
            self._engines.send(messages)

    def _starts(self, job: Job) -> bool:
        """Whether the engine has rows for another sentence; they are then taken."""
        rows = self._rows[job.mode.interactive]
        if rows and rows + job.mode.rows > self._most:
            return False
        self._rows[job.mode.interactive] = rows + job.mode.rows
        return True

    def _message(self, job: Job) -> Submit:
        number = next(_numbers)
        job.started = time.monotonic()
        self._sent[job.future] = number
        self._engines.jobs[number] = self, job
        priority = Priority.INTERACTIVE if job.mode.interactive else Priority.STANDARD
        constraints = None if job.constraints is UNCONSTRAINED else job.constraints
        return Submit(
            self.opens.level, number, list(job.source), pack_options(job.options), priority.value, constraints,
            job.progress is not None,
        )  # fmt: skip

    def _cancelled(self, future: Future[Any]) -> None:
        number = self._sent.get(future)
        if number is None:
            return
        sent = self._engines.jobs.pop(number, None)
        if sent is not None:
            self._leave(sent[1])
            self._engines.send([Cancel(number)])

    def _leave(self, job: Job) -> None:
        """A sentence is not at the engine any more."""
        with self.queue.changed:
            if self._sent.pop(job.future, None) is not None:
                self._rows[job.mode.interactive] -= job.mode.rows
                self.queue.changed.notify_all()
        self._queued(set())

    def ended(self, job: Job, outcome: Done | HmcError) -> None:
        """A sentence has ended. Runs on the event loop."""
        self._leave(job)
        if isinstance(outcome, HmcError):
            set_exception(job.future, outcome)
            return
        decoded = decoded_of(outcome, len(job.source), job.started - job.submitted)
        seconds = time.monotonic() - job.started
        target = len(decoded.hypotheses[0].ids) + 1 if decoded.hypotheses else 1
        self.queue.ended([(len(job.source), target, seconds)], interactive=job.mode.interactive)
        answer(job, decoded)

    # ---- the engine's end ----

    def note(self, state: LevelState) -> None:
        """What the level does now."""
        self._state = state

    def lose(self) -> None:
        """The engine has ended: everything that is under way fails."""
        self._lost = LOST
        with self.queue.changed:
            sent = [self._engines.jobs.pop(number, None) for number in self._sent.values()]
            jobs = [*(entry[1] for entry in sent if entry is not None), *self.queue.clear()]
            self._sent.clear()
            self._rows = {True: 0, False: 0}
            self.queue.changed.notify_all()
        for job in jobs:
            set_exception(job.future, UnavailableError(LOST))

    def opened_again(self, state: LevelState) -> None:
        """The engine serves the level again."""
        self._state = state
        self._lost = None
        log.info("level %s serves again", self.opens.name)

    def refused_again(self, error: HmcError) -> None:
        """The engine that was started again cannot open the level."""
        self._lost = str(error)
        log.error("level %s cannot be opened again: %s", self.opens.name, error)


_numbers = count(1)
"""Of sentences."""
