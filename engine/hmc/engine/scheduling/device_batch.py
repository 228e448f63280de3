"""The running batch of one mode whose search runs in the graph, on the device.

A step of the decoder chooses the next tokens by itself and feeds them to the next step. So the host launches several
steps in a row and then reads two numbers: how many searches still run, and how much of the caches they use. Only when
searches have ended does it read anything of single sentences, and only of those.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import numpy as np

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS
from hmc.engine.arrays import Ints
from hmc.engine.caches.searches import FIRST_RUN_STEPS, Beginning, Searches
from hmc.engine.decoding.history import FAILED, Ended, hypotheses
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.requests.results import Decoded
from hmc.engine.runtime import capture_lock
from hmc.engine.runtime.sessions import DeviceSessions
from hmc.engine.scheduling.batch import Outcome

EVERY = 4
AT_MOST = 8
"""Steps between two checks for finished searches: the usual number, and the largest while no search can have finished.
A check costs part of a step, because the device idles. Checking rarely leaves finished sentences in their slots."""
NEVER = np.iinfo(np.int64).max


class DeviceBatch:
    """The sentences of a batch, each in the slot of the device's memory that holds its search."""

    def __init__(self, searches: Searches) -> None:
        """An empty batch. searches: of its mode; none of them runs."""
        self.searches = searches
        self._jobs: dict[int, Job] = {}
        """Slot → sentence."""
        self._waiting_for_slot: deque[Job] = deque()
        """Sentences that were admitted, but have no slot yet."""
        self._upcoming: Callable[[], list[Job]] = list
        self._steps = self._unread = self._used = 0
        """Steps launched since the batch was made; those of them after the last report; and the most positions of the
        caches that a sentence used at that report."""
        slots = searches.slots
        self._began: Ints = np.zeros(slots, np.int64)
        """`[B]` the number of steps (`_steps`) at which the search of a slot began."""
        self._may_end: Ints = np.full(slots, NEVER)
        """`[B]` the number of steps at which it can have ended, at the earliest. NEVER: the slot is free."""
        self._must_end: Ints = np.full(slots, NEVER)
        """`[B]` the number of steps at which it has ended for certain."""

    @classmethod
    def open(cls, sessions: DeviceSessions, mode: Mode, max_rows: int, max_tokens: int) -> DeviceBatch:
        """An empty batch of this mode. max_rows, max_tokens: see `Chain`. Errors: see `Searches`."""
        assert mode.variant in SEARCH_VARIANTS
        with capture_lock.shared(sessions.device):
            searches = Searches(sessions, mode.variant, mode.rows, max_rows, max_tokens)
            try:
                if sessions.warming_up:
                    searches.warm_up()
            except BaseException:
                searches.close()  # the error may be kept for long, and the memory with it
                raise
        return cls(searches)

    @property
    def jobs(self) -> list[Job]:
        """The sentences of the batch."""
        return [*self._jobs.values(), *self._waiting_for_slot]

    # -- sentences join and leave ------------------------------------------------------------------------------------

    def admit(self, jobs: list[Job], upcoming: Callable[[], list[Job]] = list) -> None:
        """Encodes new sentences and begins their searches. Those for which the caches have no slot now wait in the
        batch until they have one. upcoming: see `RunningBatch.admit`."""
        self._waiting_for_slot += jobs
        self._upcoming = upcoming
        with capture_lock.shared(self.searches.device):
            self._begin()

    def close(self) -> None:
        """Gives the memory back. The batch may not be used afterwards."""
        with capture_lock.shared(self.searches.device):
            self.searches.close()

    def _begin(self) -> None:
        """Begins the searches of sentences that wait, in their order, as far as there are slots for them."""
        new = self._placed() if self._waiting_for_slot else {}
        if not new:
            return
        now = time.monotonic()
        for slot, job in new.items():
            job.started = now
            self._began[slot] = self._steps
            self._may_end[slot] = self._steps + job.rules.min_length
            self._must_end[slot] = self._steps + job.rules.limit
        self._jobs |= new
        begun = [Beginning(slot, job.source, job.future, rules=job.rules) for slot, job in new.items()]
        self.searches.begin(begun, self._slots, self._next)

    def _next(self) -> list[tuple[Future[Any], Sequence[int]]]:
        """Sentences that will begin next: those that wait in the batch, then those that wait for it."""
        return [
            (job.future, job.source)
            for job in (*self._waiting_for_slot, *self._upcoming())
            if not job.future.cancelled()
        ]

    def _placed(self) -> dict[int, Job]:
        """Takes sentences that wait, and gives each the lowest free slot."""
        new: dict[int, Job] = {}
        slots = self._slots
        source = 0
        target = 0
        free = (slot for slot in count() if slot not in self._jobs)
        while self._waiting_for_slot:
            job = self._waiting_for_slot[0]
            slot = next(free)
            slots = max(slots, slot + 1)
            source = max(source, len(job.source))
            target = max(target, job.rules.limit)
            if not self.searches.hold(slots, source, target):
                break
            new[slot] = self._waiting_for_slot.popleft()
        return new

    @property
    def _slots(self) -> int:
        """The last slot in use, plus one."""
        return max(self._jobs, default=-1) + 1

    def _leave(self, slots: Sequence[int]) -> None:
        """These slots become free."""
        for slot in slots:
            del self._jobs[slot]
            self._may_end[slot] = self._must_end[slot] = NEVER
        self.searches.fit(self._slots)
        if not self._jobs:
            self._used = 0

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, undisturbed: Callable[[], bool]) -> Outcome:
        """Runs decoder steps until searches have ended, or until `undisturbed` says that there is something else to do.
        Sentences whose search has ended or that were cancelled leave the batch.

        If there is nothing else to do, the device is in a further step when this returns: it computes while the host
        makes hypotheses of what it has found.
        """
        with capture_lock.shared(self.searches.device):
            return self._step(undisturbed)

    def _step(self, undisturbed: Callable[[], bool]) -> Outcome:
        outcome = Outcome()
        calm, any_ended = self._run(undisturbed)
        ended, failed = self._ended() if any_ended else ([], [])
        results = self.searches.collect(ended, self._steps - int(self._began[ended].min())) if ended else None
        if any(failed):
            self.searches.clean([slot for slot, broken in zip(ended, failed, strict=True) if broken])
        leaving = [self._jobs[slot] for slot in ended]
        cancelled = [] if calm else self._cancelled(set(ended))
        outcome.ended += [(self._jobs[slot], None) for slot in cancelled]
        if cancelled:
            self.searches.stop(cancelled)
        if self._waiting_for_slot and not calm:
            outcome.ended += [(job, None) for job in self._drop_cancelled()]
        if leaving or cancelled:
            self._leave([*ended, *cancelled])
            self._begin()
            if self._jobs and undisturbed() and self._room() >= FIRST_RUN_STEPS:
                self._advance()
        if results is not None:
            outcome.ended += _decoded(leaving, results, failed)
        return outcome

    def _run(self, undisturbed: Callable[[], bool]) -> tuple[bool, bool]:
        """Runs steps until searches have ended, or until `undisturbed` is false. Returns what `undisturbed` said last,
        and whether searches have ended."""
        calm = True
        any_ended = False
        while calm and self._jobs and not any_ended:
            self._make_room()
            due = self._steps - self._unread + self._stride()
            due = min(max(due, self._steps + 1), self._steps + self._room())
            while calm and self._steps < due:
                self._advance()
                calm = undisturbed()
            any_ended = self._report() < len(self._jobs) or self._steps >= int(self._must_end.min())
        return calm, any_ended

    def _advance(self) -> None:
        """Launches a step."""
        taken = self.searches.run()
        self._steps += taken
        self._unread += taken

    def _report(self) -> int:
        """Waits for the steps that were launched. Returns how many searches still run."""
        running, self._used = self.searches.report()
        self._unread = 0
        return running

    def _stride(self) -> int:
        """Steps from one report to the next. Where a search reaches its limit before, up to there."""
        now = self._steps - self._unread
        soonest = int(self._may_end.min()) - now
        limit = int(self._must_end.min()) - now
        return min(max(soonest, min(EVERY, limit)), AT_MOST)

    def _room(self) -> int:
        """Steps that surely fit the caches."""
        return self.searches.room(self._used) - self._unread

    def _make_room(self) -> None:
        """Lets the caches grow before they run short."""
        if self._room() < FIRST_RUN_STEPS and self._unread:
            self._report()
        if self._room() < FIRST_RUN_STEPS:
            self.searches.grow(self._used)

    # -- ends --------------------------------------------------------------------------------------------------------

    def _ended(self) -> tuple[list[int], list[bool]]:
        """Slots whose searches have ended, and which of these have failed."""
        done = self.searches.done()
        used = self._may_end < NEVER
        ended = np.flatnonzero(used & ((done != 0) | (self._steps >= self._must_end)))
        return ended.tolist(), (done[ended] == FAILED).tolist()

    def _cancelled(self, ended: set[int]) -> list[int]:
        return [slot for slot, job in self._jobs.items() if slot not in ended and job.future.cancelled()]

    def _drop_cancelled(self) -> list[Job]:
        """Takes cancelled sentences from those that wait."""
        waiting = self._waiting_for_slot
        self._waiting_for_slot = deque()
        dropped: list[Job] = []
        for job in waiting:
            (dropped if job.future.cancelled() else self._waiting_for_slot).append(job)
        return dropped


def _decoded(jobs: Sequence[Job], results: Ended, failed: Sequence[bool]) -> list[tuple[Job, Decoded | None]]:
    """The results of sentences whose searches have ended."""
    best = hypotheses(results, failed, [job.options.n_best for job in jobs], [job.rules.length_penalty for job in jobs])
    now = time.monotonic()
    return [
        (job, Decoded(hypotheses_of_job, job.started - job.submitted, now - job.started))
        for job, hypotheses_of_job in zip(jobs, best, strict=True)
    ]
