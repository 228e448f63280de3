"""A worker of an engine: the thread that takes sentences from the queue into batches, and turns their searches."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hmc.artifact.errors import HmcError
from hmc.serving.batch import Batch
from hmc.serving.jobs import Job, Mode
from hmc.serving.lanes import TimeShares
from hmc.serving.token_budget import TokenBudget

if TYPE_CHECKING:  # the engine makes its workers
    from hmc.serving.engine import Engine

IDLE_S = 5.0
"""Seconds without work after which a worker lets go of its caches."""


class Worker(threading.Thread):
    """Runs batches of its own, of the sentences that it takes from the engine's queue under the engine's lock."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(name="hmc-engine", daemon=True)
        self.engine, self.running, self.hurried = engine, 0, 0
        self._batches: dict[Mode, Batch] = {}
        self._shares = TimeShares()
        self._cancellations = 0
        """Those that there were before the last step: it has seen them."""
        self._refused_at = (-1, 0)
        """Free rows, and sentences in a hurry, when the next one was too long: it still is while they are the same."""

    def jobs(self) -> list[Job]:
        """What it works on."""
        return [job for batch in self._batches.values() for job in batch.jobs]

    def run(self) -> None:
        """Until the engine closes."""
        while self._wait_for_work():
            self._admit()
            self._step()
            self.running = sum(len(b.jobs) for b in self._batches.values())
            self.hurried = sum(len(b.jobs) for mode, b in self._batches.items() if not mode.patient)

    def _step(self) -> None:
        """One turn of every batch whose turn it is; of one alone more, while nothing else can be begun."""
        engine, free = self.engine, self._free()
        active = [mode for mode, batch in self._batches.items() if batch.jobs]
        chosen, began = self._shares.choose(active), time.monotonic()
        until = math.inf if len(active) < 2 else began + (0.0 if chosen[0].patient else self._shares.left)
        seen, self._cancellations = self._cancellations, engine.cancellations

        def undisturbed() -> bool:
            if len(chosen) > 1 or time.monotonic() >= until:
                return False
            return self._nothing_to_admit(free) and engine.cancellations == seen

        for mode in chosen:
            if batch := self._batches.get(mode):
                try:
                    batch.step(undisturbed)
                except Exception as error:  # noqa: BLE001 - its sentences hear of it and the rest go on
                    self._fail(mode, error)
        self._shares.count(chosen, time.monotonic() - began)

    def _wait_for_work(self) -> bool:
        engine = self.engine
        with engine.changed:
            while not engine.queue and not self.running:
                if engine.closing:
                    return False
                if not engine.changed.wait(IDLE_S if self._batches else None):
                    self._batches.clear()  # their caches are as large as the largest batch needed
        return True

    def _admit(self) -> None:
        """Moves queued sentences into batches while rows are free, and leaves idle workers their share.

        While plenty are queued, waits until a quarter of the rows is free: encoding many at once is cheaper. Those in a
        hurry, if there are rows for all of them, do not wait.
        """
        engine, free = self.engine, self._free()
        taken: dict[Mode, list[Job]] = {}
        with engine.changed:
            queue = engine.queue
            if not queue:
                return
            rows = queue.first().mode.rows
            saving = self._saves_rows(free, len(queue) * rows)
            if saving and not 0 < queue.hurried * rows <= free:
                return
            idle = sum(not worker.running for worker in engine.workers if worker is not self)
            left = len(queue) - -(-len(queue) // (1 + idle))
            tokens = TokenBudget(engine.max_tokens, self._batches)
            while len(queue) > left and (queue.hurried or not saving):
                if (job := queue.first()).mode.rows > free or not tokens.take(job):
                    break
                queue.take()
                if not job.future.cancelled():
                    free -= job.mode.rows
                    taken.setdefault(job.mode, []).append(job)
            self._refused_at = (free, queue.hurried) if tokens.refused else (-1, 0)
            self.running += sum(map(len, taken.values()))
            self.hurried += sum(len(jobs) for mode, jobs in taken.items() if not mode.patient)
            engine.tell_room()
        for mode, jobs in taken.items():
            try:
                if mode not in self._batches:
                    self._batches[mode] = Batch(engine.sessions, mode)
                self._batches[mode].admit(jobs)
            except Exception as error:  # noqa: BLE001 - as above
                _fail_jobs(jobs, error)
                self._fail(mode, error)

    def _free(self) -> int:
        """Rows that no sentence of this worker has."""
        return self.engine.max_rows - sum(batch.rows for batch in self._batches.values())

    def _nothing_to_admit(self, free: int) -> bool:
        """Whether `_admit` would surely take nothing; asked without the lock."""
        waiting, hurried = len(self.engine.queue), self.engine.queue.hurried
        if not (waiting and free) or (free, hurried) == self._refused_at:
            return True
        return self._saves_rows(free, waiting) and not 0 < hurried <= free

    def _saves_rows(self, free: int, waiting: int) -> bool:
        """Whether `_admit` takes nothing while so many rows are free and at least so many waited for."""
        return waiting > free and free < self.engine.max_rows // 4

    def _fail(self, mode: Mode, error: Exception) -> None:
        """A batch failed: its sentences get the error, the engine goes on with the others and with new ones."""
        batch = self._batches.pop(mode, None)
        if batch is not None:
            _fail_jobs(batch.jobs, error)


def _fail_jobs(jobs: Sequence[Job], error: Exception) -> None:
    wrapped = error if isinstance(error, HmcError) else RuntimeError(f"decoding failed: {error}")
    for job in jobs:
        if not job.future.done() and job.future.set_running_or_notify_cancel():
            job.future.set_exception(wrapped)
