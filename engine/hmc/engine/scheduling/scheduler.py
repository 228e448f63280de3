"""What one worker does next: which waiting sentences start, which batches run, and which memory is given back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from hmc.artifact.rounding import ceil_div
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.scheduling.budgets import Budget, TokenBudget
from hmc.engine.scheduling.policy import AdmissionPolicy, TimeSlices
from hmc.engine.scheduling.queue import WaitingQueue

MOST_AT_ONCE = 4096
"""Source tokens of other than interactive sentences after which no more start before the next step, in a worker of up
to 128 rows: interactive sentences wait while they are encoded."""
MOST_AHEAD = 256
"""Sentences at the head of their lane that `Scheduler.upcoming` looks at."""

Running = dict[Mode, dict[Future[Any], Job]]


@dataclass(frozen=True)
class Plan:
    """What has to be done before the next step, in this order."""

    evicted: list[Mode]
    """Modes of empty batches whose caches are to be freed."""
    started: dict[Mode, list[Job]]
    """Sentences that join the batch of their mode."""


class Scheduler:
    """The scheduler of one worker. It knows which sentences run, by their mode; the worker holds the batches.

    The workers of a level share the queue. The lock of the queue also guards the running sentences of all schedulers.
    """

    def __init__(
        self,
        queue: WaitingQueue,
        workers: list[Scheduler],
        *,
        max_rows: int,
        max_tokens: int,
        budget: Callable[[], Budget] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """workers: the schedulers of all workers of the level; this one appends itself. max_rows, max_tokens: of all
        batches of this worker together (see `TokenBudget`). budget: makes another kind of budget for their memory.
        clock: seconds, from any start."""
        self._queue = queue
        self._workers = workers
        self._clock = clock
        self.max_rows = max_rows
        self._new_budget = budget or (lambda: TokenBudget(max_tokens))
        self._policy = AdmissionPolicy(max_rows)
        self._paused = self._resting = False
        self._forget_all()
        workers.append(self)

    def _forget_all(self) -> None:
        self._running: Running = {}  # only modes of which a sentence runs
        self._cancelled: set[Future[Any]] = set()
        self._budget = self._new_budget()
        self._slices = TimeSlices()
        self._too_long: tuple[int, int] | None = None
        """(free rows, interactive sentences that wait) when the budget last refused a sentence. While both numbers stay
        the same, the budget would refuse it again."""
        self._stepping: list[Mode] = []
        self._began = 0.0
        self._until = 0.0
        self._free = 0

    # ---- the worker's loop ----

    def schedule(self) -> Plan | None:
        """Waits until there is something to do. None: the queue is closed and no sentence is left."""
        queue = self._queue
        idle = False
        with queue.changed:
            while not ((queue.ready and not self._paused) or self._running):
                if queue.closed and not len(queue):
                    return None
                if evicted := self._budget.evict(self._clock()):
                    return Plan(evicted, {})
                queue.changed.wait(self._budget.next_eviction(self._clock()))
                idle = True
            started: dict[Mode, list[Job]] = {}
            interactive = queue.interactive
            others = queue.others
            if (interactive or others) and not self._paused:
                free = self._free_rows()
                full = not free or self._policy.holds_back(free, interactive + others, interactive)
                if not (self._running and full):
                    started = self._start(free, interactive, others)
                    queue.looked(interactive, others, idle=idle)
        return Plan(self._budget.evict(self._clock()) if self._budget.any_empty else [], started)

    def upcoming(self, mode: Mode) -> list[Job]:
        """The sentences of this mode that will start next, as it looks now. They stay in the queue. None if other
        workers take from it, too: nobody knows then which of them start here."""
        return self._queue.upcoming(mode, MOST_AHEAD) if len(self._workers) == 1 else []

    def begin_step(self) -> list[Mode]:
        """Chooses the batches that run this step, and returns their modes."""
        running = list(self._running)
        self._stepping = self._slices.choose(running)
        self._began = self._clock()
        self._free = self._free_rows()
        limit = self._slices.remaining_s if self._stepping and self._stepping[0].interactive else 0.0
        self._until = math.inf if len(running) < 2 else self._began + limit
        return self._stepping

    def encoded(self, mode: Mode, seconds: float) -> None:
        """Accounts for the encoding of sentences of this mode."""
        self._slices.count([mode], seconds)

    def undisturbed(self) -> bool:
        """Whether a batch may run another step at once: no other batch is to run, no sentence can start, and none was
        cancelled. A batch calls this between two steps, without the lock."""
        if len(self._stepping) > 1 or self._clock() >= self._until:
            return False
        return self._nothing_can_start() and not self._cancelled

    def end_step(self, ended: Sequence[Job]) -> None:
        """Accounts for the step. ended: sentences that have left their batches."""
        self._slices.count(self._stepping, self._clock() - self._began)
        if not ended:
            return
        with self._queue.changed:
            for mode, of_mode in groupby(ended, attrgetter("mode")):
                running = self._running[mode]
                need = 0
                for job in of_mode:
                    running.pop(job.future, None)
                    need = max(need, self._budget.need(job))
                self._resize(mode, need)
            if self._cancelled:
                self._cancelled.difference_update(job.future for job in ended)

    def drop(self, mode: Mode) -> list[Job]:
        """Forgets the batch of this mode, and returns its sentences."""
        with self._queue.changed:
            jobs = self._running.pop(mode, {})
            self._cancelled -= jobs.keys()
            self._budget.forget(mode)
        return list(jobs.values())

    def give_up(self, keep: Container[Mode]) -> Mode | None:
        """Forgets the batch that has been empty for longest, and returns its mode; None if there is none but `keep`."""
        with self._queue.changed:
            mode = next((mode for mode in self._budget.empties if mode not in keep), None)
            if mode is not None:
                self._budget.forget(mode)
        return mode

    def drop_all(self) -> list[Job]:
        """Forgets every sentence: those that ran here and those that wait for any worker. Returns them."""
        with self._queue.changed:
            jobs = self.running()
            self._forget_all()
            return [*jobs, *self._queue.clear()]

    def rest(self, seconds: float) -> None:
        """Waits so long, or until the queue is closed. Sentences that come are left to the other workers, and end the
        wait only where all of them rest."""
        with self._queue.changed:
            self._resting = True
            self._queue.changed.notify_all()
            self._queue.changed.wait_for(self._is_needed, seconds)
            self._resting = False

    def _is_needed(self) -> bool:
        waits = bool(len(self._queue)) and all(worker._resting for worker in self._workers)
        return self._queue.closed or waits

    # ---- other threads ----

    def pause(self, paused: bool) -> None:
        """While it is paused, no sentence starts here; those that run go on."""
        with self._queue.changed:
            self._paused = paused
            self._queue.changed.notify_all()

    def running(self) -> list[Job]:
        """The sentences that run here."""
        with self._queue.changed:
            return list(chain.from_iterable(jobs.values() for jobs in self._running.values()))

    def count(self, *, interactive: bool = False) -> int:
        """How many sentences run here. interactive: count interactive ones only."""
        with self._queue.changed:
            return sum(len(jobs) for mode, jobs in self._running.items() if mode.interactive or not interactive)

    def batches(self) -> list[tuple[Mode, int]]:
        """The batches that run here: their modes and sentences."""
        with self._queue.changed:
            return [(mode, len(jobs)) for mode, jobs in self._running.items()]

    def rows(self, mode: Mode) -> int:
        """Rows of the batch of this mode. For the worker's own thread."""
        return mode.rows * len(self._running.get(mode, ()))

    def note_cancelled(self, future: Future[Any]) -> None:
        """The caller cancelled this sentence: if it runs here, it leaves after the present step."""
        with self._queue.changed:
            if any(future in jobs for jobs in self._running.values()):
                self._cancelled.add(future)

    # ---- admission ----

    def _start(self, free: int, interactive: int, others: int) -> dict[Mode, list[Job]]:
        """Takes the sentences that start now from the queue. Leaves an equal part to each other worker that is idle.
        free: rows that no sentence uses. interactive, others: sentences in the two lanes."""
        queue = self._queue
        started: dict[Mode, list[Job]] = {}
        first = queue.first()
        rows = first.mode.rows
        waiting = (interactive + others) * rows
        if self._policy.holds_back(free, waiting, interactive * rows):
            return started
        room, most = self._budget.room(first.mode, self._budget.need(first))
        if self._policy.holds_back(min(free, room), waiting, interactive * rows, most):
            self._too_long = free, interactive
            return started
        saving = self._policy.saves_rows(free, waiting)
        rest = [worker for worker in self._workers if worker is not self]
        idle = sum(not (worker._running or worker._paused or worker._resting) for worker in rest)
        sentences = ceil_div(interactive + others, 1 + idle)
        self._too_long = None
        tokens = max(MOST_AT_ONCE, 32 * self.max_rows)

        def starts(job: Job) -> bool:
            nonlocal free, sentences, tokens
            mode = job.mode
            if sentences <= 0 or tokens <= 0 or mode.rows > free or (saving and not queue.interactive):
                return False
            if not self._budget.take(mode, mode.rows, self._budget.need(job)):
                self._too_long = free, queue.interactive
                return False
            free -= mode.rows
            sentences -= 1
            if not mode.interactive:
                tokens -= len(job.source)
            return True

        for mode, jobs in groupby(queue.take(starts), attrgetter("mode")):
            new: dict[Future[Any], Job] = {job.future: job for job in jobs}
            started.setdefault(mode, []).extend(new.values())
            self._running.setdefault(mode, {}).update(new)
        queue.announce_space()
        return started

    def _nothing_can_start(self) -> bool:
        """Whether `_start` would take nothing. It reads without the lock, so the answer may be one step old."""
        waiting = self._queue.ready
        free = self._free
        if self._paused or not (waiting and free):
            return True
        interactive = self._queue.interactive
        if (free, interactive) == self._too_long:
            return True
        return self._policy.holds_back(free, waiting, interactive)

    def _free_rows(self) -> int:
        """Rows that no running sentence of this worker uses."""
        return self.max_rows - sum(mode.rows * len(jobs) for mode, jobs in self._running.items())

    def _resize(self, mode: Mode, gone: int) -> None:
        """After sentences have left the batch of this mode. gone: the most that one of them needed."""
        if jobs := self._running[mode]:
            largest = self._budget.largest(mode)
            if gone >= largest:
                largest = max(map(self._budget.need, jobs.values()))
            self._budget.resize(mode, len(jobs) * mode.rows, largest)
        else:
            del self._running[mode]
            self._budget.empty(mode, self._clock())
