"""The sentences of a level that wait, and the order in which they start."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Any

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import OverloadedError, UnavailableError
from hmc.artifact.rounding import ceil_div
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.requests.caller import ANYONE, Caller, Priority
from hmc.engine.scheduling.fair_queue import FairQueue
from hmc.engine.scheduling.speed import LevelSpeed, retry_after_s

log = logging.getLogger(__name__)

INTERACTIVE_IN_A_ROW = 3
"""Interactive sentences that may start in a row while other sentences wait. The next one to start is one of those."""

RESERVE = 4
"""A full queue has this part of its size, a quarter, for callers that have less than their fair part of it."""


class WaitingQueue:
    """Sentences wait in two lanes: interactive ones, and all others. Interactive sentences start first, but while both
    lanes hold sentences, every fourth start is from the other lane. Within a lane, callers take turns (`FairQueue`). A
    sentence whose decoder variant is not open yet waits aside, so that later sentences can start before it.

    All workers of a level share the queue. `changed` is its lock, and is notified whenever something changes. Every
    method takes the lock. It is reentrant: hold it around several calls that belong together.
    """

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        """size: sentences that may wait before the queue is full. clock: seconds, from any start."""
        self.size = size
        self._clock = clock
        self.speed = LevelSpeed()
        self.bulk_size = ceil_div(size, 2)
        """Sentences that may wait before the queue is full for `Priority.BULK`."""
        self.changed = threading.Condition()
        self.closed = False
        self.failure: str | None = None
        """Why a worker of the level failed; None if none did, or if one has answered a sentence since."""
        self.open_variants: set[Variant | None] = {None}
        self._interactive = FairQueue()
        self._others = FairQueue()
        self._lanes = {True: self._interactive, False: self._others}
        """By whether their sentences are interactive."""
        self._waiting_for_graph: OrderedDict[Future[Any], tuple[Job, Caller]] = OrderedDict()
        self._in_a_row = 0
        self._when_space: list[Callable[[], None]] = []

    # Counts may be read without the lock: each is the length of a dictionary.

    def __len__(self) -> int:
        return self.ready + len(self._waiting_for_graph)

    @property
    def ready(self) -> int:
        """Sentences that can start, if there are rows for them."""
        return len(self._interactive) + len(self._others)

    @property
    def interactive(self) -> int:
        """Interactive sentences that can start, if there are rows for them."""
        return len(self._interactive)

    @property
    def others(self) -> int:
        """Sentences that are not interactive and can start, if there are rows for them."""
        return len(self._others)

    @property
    def waiting_interactive(self) -> int:
        """All interactive sentences in the queue, also those whose decoder variant is not open yet."""
        with self.changed:
            return len(self._interactive) + sum(job.mode.interactive for job, _ in self._waiting_for_graph.values())

    def __iter__(self) -> Iterator[Job]:
        with self.changed:
            return iter([*self._interactive, *self._others, *(job for job, _ in self._waiting_for_graph.values())])

    def put(
        self,
        job: Job,
        priority: Priority = Priority.INTERACTIVE,
        *,
        block: bool = False,
        caller: Caller = ANYONE,
        within_s: float | None = None,
        follows: bool = False,
    ) -> bool:
        """Appends a sentence to its lane. Returns False if it waits until `open_variant` is called.

        block: wait while the queue is full. within_s: seconds in which the sentence has to be translated. follows: the
        sentence takes the place of one that has ended, also in a full queue. Raises
        OverloadedError for a full queue unless `block`, UnavailableError once closed, and DeadlineExceededError if the
        measured speed of the level says that `within_s` is too short.
        """
        limit = self.bulk_size if priority is Priority.BULK else self.size
        with self.changed:
            while not follows and self._is_full(limit, caller) and not self.closed:
                if not block:
                    raise self._full(limit)
                self.changed.wait()
            if self.closed:
                raise UnavailableError("the engine is shutting down; send the request elsewhere")
            if within_s is not None:
                interactive = job.mode.interactive
                sizes = self._lanes[interactive].ahead(caller), len(job.source), job.rules.limit
                forecast = self.speed.forecast(self._clock(), *sizes, interactive=interactive)
                if forecast is not None:
                    forecast.check(within_s)
            can_start = self._append((job,), caller)
            self.changed.notify_all()
            return can_start

    def put_all(self, jobs: Sequence[Job], priority: Priority, *, block: bool, caller: Caller) -> bool:
        """`put` for many sentences. Returns whether all of them can start. Raises as `put`; those before the one that
        was refused are cancelled."""
        limit = self.bulk_size if priority is Priority.BULK else self.size
        all_can_start = True
        count = 0
        with self.changed:
            try:
                while count < len(jobs):
                    places = 0 if self.closed else limit - len(self)
                    if places > 0:
                        together = jobs[count : count + places]
                        all_can_start &= self._append(together, caller)
                        self.changed.notify_all()
                        count += len(together)
                    else:
                        all_can_start &= self.put(jobs[count], priority, block=block, caller=caller)
                        count += 1
            except BaseException:
                for job in jobs[:count]:
                    job.future.cancel()
                raise
        return all_can_start

    def check_space(self, priority: Priority, caller: Caller) -> None:
        """Raises OverloadedError if `put` would do so now. It costs less than to prepare a sentence in vain."""
        limit = self.bulk_size if priority is Priority.BULK else self.size
        with self.changed:
            if not self.closed and self._is_full(limit, caller):
                raise self._full(limit)

    def _full(self, limit: int) -> OverloadedError:
        places = max(1, limit // 16)  # for some, not for one: all callers that are refused now will come again then
        return OverloadedError(
            f"the queue of {self.size} sentences is full; try again later or choose a smaller level",
            retry_after_s(places, self.speed.per_second(self._clock())),
        )

    def _is_full(self, limit: int, caller: Caller) -> bool:
        """Whether a sentence of this caller has no place. A caller that has less than its fair part of the queue may
        use the reserve, so that no other caller can keep it out."""
        if len(self) < limit:
            return False
        if len(self) >= limit + limit // RESERVE:
            return True
        aside = Counter(owner.name for _, owner in self._waiting_for_graph.values())
        callers = self._interactive.callers | self._others.callers | aside.keys() | {caller.name}
        own = self._interactive.waiting(caller.name) + self._others.waiting(caller.name) + aside[caller.name]
        return own >= limit // len(callers)

    def expected_s(self, *, interactive: bool) -> float | None:
        """Seconds that a new sentence of usual length would take now, from its arrival to its end; None if too little
        was measured."""
        with self.changed:
            return self.speed.usual_s(self._clock(), len(self._lanes[interactive]), interactive=interactive)

    def ended(self, sentences: Sequence[tuple[int, int, float]], *, interactive: bool) -> None:
        """Sentences have been translated; see `Pace.ended`."""
        self.speed.paces[interactive].ended(self._clock(), sentences)

    def looked(self, interactive: int, others: int, *, idle: bool) -> None:
        """A worker has looked for sentences to start. interactive, others: how many waited before. idle: see
        `DrainRate.looked`."""
        now = self._clock()
        for is_interactive, before in ((True, interactive), (False, others)):
            remaining = len(self._lanes[is_interactive])
            self.speed.rates[is_interactive].looked(now, before - remaining, remaining, idle=idle)

    def first(self) -> Job:
        """The sentence that starts next. Raises StopIteration if none can start."""
        with self.changed:
            return self._next.first()

    def upcoming(self, mode: Mode, most: int) -> list[Job]:
        """Those of the first `most` sentences in the lane of this mode that are of this mode, in their order. They go
        on waiting."""
        with self.changed:
            return [job for job in islice(self._lanes[mode.interactive], most) if job.mode == mode]

    def take(self, starts: Callable[[Job], bool]) -> list[Job]:
        """Removes sentences, in the order in which they start, until `starts` is false for the next one. Returns
        them."""
        taken: list[Job] = []
        with self.changed:
            while self._interactive and self._others:
                lane = self._next
                if not (next_one := lane.take(starts, 1)):
                    return taken
                taken += next_one
                self._in_a_row = self._in_a_row + 1 if lane is self._interactive else 0
            lane = self._interactive or self._others
            rest = lane.take(starts, len(lane))
            if rest:
                self._in_a_row = 0
        return taken + rest

    def take_interactive(self, starts: Callable[[Job], bool]) -> list[Job]:
        """As `take`, but interactive sentences only, whatever other sentences wait."""
        with self.changed:
            return self._interactive.take(starts, len(self._interactive))

    def remove(self, future: Future[Any]) -> bool:
        """Removes the sentence of this future. Returns False if it does not wait here."""
        with self.changed:
            removed = self._interactive.remove(future) or self._others.remove(future)
            removed = removed or self._waiting_for_graph.pop(future, None) is not None
            if removed:
                self.announce_space()
            return removed

    def clear(self) -> list[Job]:
        """Removes every sentence and returns them."""
        with self.changed:
            jobs = list(self)
            for waiting in (self._interactive, self._others, self._waiting_for_graph):
                waiting.clear()
            self._in_a_row = 0
            self.announce_space()
            return jobs

    # ---- decoder variants ----

    def open_variant(self, variant: Variant) -> None:
        """From now on, sentences that need this decoder variant can start. Those that waited join their lanes."""
        with self.changed:
            self.open_variants.add(variant)
            for job, caller in self._take_waiting_for_graph(variant):
                self._append((job,), caller)
            self.changed.notify_all()

    def take_waiting_for_graph(self, variant: Variant) -> list[Job]:
        """Removes the sentences that wait for a decoder variant, and returns them."""
        with self.changed:
            jobs = [job for job, _ in self._take_waiting_for_graph(variant)]
            self.announce_space()
            return jobs

    def _take_waiting_for_graph(self, variant: Variant) -> list[tuple[Job, Caller]]:
        taken = [entry for entry in self._waiting_for_graph.values() if entry[0].mode.variant == variant]
        for job, _ in taken:
            del self._waiting_for_graph[job.future]
        return taken

    # ---- space ----

    def call_when_space(self, call: Callable[[], None]) -> None:
        """Calls `call` once, as soon as the queue has space for `Priority.BULK` or is closed. `call` runs with the
        queue locked, in this thread or in the one that makes the space, and has to be quick."""
        with self.changed:
            self._when_space.append(call)
            self.announce_space()

    def announce_space(self) -> None:
        """Wakes every thread that waits for space or for work. If there is space, makes the calls that wait for it."""
        with self.changed:
            self.changed.notify_all()
            if not self._when_space or not (len(self) < self.bulk_size or self.closed):
                return
            calls = self._when_space
            self._when_space = []
            for call in calls:
                try:
                    call()
                except Exception:
                    log.exception("a callback for space in the queue raised; the queue goes on")

    def close(self) -> None:
        """From now on `put` raises UnavailableError. Sentences that wait stay in the queue."""
        with self.changed:
            self.closed = True
            self.announce_space()

    # ---- lanes ----

    def _append(self, jobs: Sequence[Job], caller: Caller) -> bool:
        """Returns whether all of them can start."""
        new: dict[bool, list[Job]] = {True: [], False: []}
        for job in jobs:
            if job.mode.variant in self.open_variants:
                new[job.mode.interactive].append(job)
            else:
                self._waiting_for_graph[job.future] = job, caller
        for interactive, lane in self._lanes.items():
            if new[interactive]:
                if not lane:
                    self.speed.rates[interactive].restart()
                lane.extend(new[interactive], caller)
        return len(new[True]) + len(new[False]) == len(jobs)

    @property
    def _next(self) -> FairQueue:
        others_first = self._others and self._in_a_row >= INTERACTIVE_IN_A_ROW
        return self._others if others_first or not self._interactive else self._interactive
