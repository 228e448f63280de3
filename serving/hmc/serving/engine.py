"""The decode engine of one level: continuous batching. A sentence joins a running batch at the next step, a finished or
cancelled one frees its rows at once. Each worker is a thread that owns its batches and caches; callers only hold
futures."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from hmc.artifact.errors import (
    FailedPreconditionError,
    HmcError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from hmc.serving.batch import Batch
from hmc.serving.constraints import Constraints
from hmc.serving.jobs import Job, Mode, Progress, plan_job
from hmc.serving.lanes import Lanes, TimeShares
from hmc.serving.options import MAX_TOKENS, DecodeOptions
from hmc.serving.results import Decoded
from hmc.serving.sessions import LevelSessions
from hmc.serving.token_budget import TokenBudget

IDLE_S = 5.0
"""Seconds without work after which a worker lets go of its caches."""


class Engine:
    """The queue of a level, and the workers that take from it."""

    def __init__(
        self, sessions: LevelSessions, *, queue_size: int, max_rows: int, max_tokens: int = MAX_TOKENS, workers: int = 1
    ) -> None:
        """max_rows: decoded together. max_tokens: rows of a batch times the positions that the longest of its sentences
        may need, which is what caches take memory for; a sentence that needs more runs alone. Both are over all
        workers, which share the sessions. Raises InvalidRequestError for several workers on a
        device other than the CPU."""
        if workers > 1 and sessions.device.kind != "cpu":
            raise InvalidRequestError(f"workers {workers}: on {sessions.device} a level has one; choose 1")
        self.sessions, self.queue_size, self.max_rows = sessions, queue_size, -(-max_rows // workers)
        self.max_tokens = -(-max_tokens // workers)
        self.bulk_size = -(-queue_size // 2)
        """Sentences that may be queued before bulk work has to wait: it leaves the rest of the queue to others."""
        self.queue, self._process = Lanes(), os.getpid()
        self.changed = threading.Condition()
        self.closing = False
        self.cancellations = 0
        """Sentences that callers cancelled so far after a worker had taken them."""
        self._waiting: list[Callable[[], None]] = []
        self.workers = [_Worker(self) for _ in range(workers)]
        for worker in self.workers:
            worker.start()

    @property
    def pending(self) -> int:
        """Sentences queued or running."""
        return len(self.queue) + sum(worker.running for worker in self.workers)

    @property
    def hurried(self) -> int:
        """Those of them that are not patient."""
        return self.queue.hurried + sum(worker.hurried for worker in self.workers)

    def submit(
        self,
        source: Sequence[int],
        options: DecodeOptions,
        constraints: Constraints | None = None,
        progress: Progress | None = None,
        *,
        block: bool = False,
        patient: bool = False,
        bulk: bool = False,
    ) -> Future[Decoded]:
        """Queues a sentence (ids with EOS). Its future may be cancelled at any time: a queued one then leaves at once.

        patient: others may pass (`Lanes`). bulk: that, and the queue is full for it at `bulk_size`. A full queue raises
        OverloadedError, or with block is waited for. Raises InvalidRequestError for a beam that can never fit and for
        what the level cannot do; UnavailableError once closed; FailedPreconditionError in a forked process.
        """
        if os.getpid() != self._process:
            raise FailedPreconditionError(
                "this level was opened in another process, and a fork leaves its threads behind: open it in this one"
            )
        if options.rows > self.max_rows:
            name = "n_best" if options.sampling else "beam_size"
            raise InvalidRequestError(
                f"{name} {options.rows}: this server runs at most {self.max_rows} rows together; "
                f"choose {self.max_rows} or fewer"
            )
        job = plan_job(self.sessions, source, options, constraints or Constraints(), progress, patient=patient or bulk)
        most = self.bulk_size if bulk else self.queue_size
        with self.changed:
            while len(self.queue) >= most and not self.closing:
                if not block:
                    raise OverloadedError(
                        f"the queue of {self.queue_size} sentences is full; try again later or choose a smaller level"
                    )
                self.changed.wait(0.1)
            if self.closing:
                raise UnavailableError("the engine is shutting down; send the request elsewhere")
            self.queue.add(job)
            self.changed.notify_all()
        job.future.add_done_callback(self._note_cancellation)
        return job.future

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Calls `call` once: when the queue has room for bulk or the engine closes, at once if that is so. It may run
        on an engine's thread, has to be quick and must not raise."""
        with self.changed:
            self._waiting.append(call)
            self.tell_room()

    def tell_room(self) -> None:
        """Wakes those who wait for room, if there is some. Only with the lock."""
        self.changed.notify_all()
        if self._waiting and (len(self.queue) < self.bulk_size or self.closing):
            calls, self._waiting = self._waiting, []
            for call in calls:
                call()

    def _note_cancellation(self, future: Future[Decoded]) -> None:
        if future.cancelled():
            with self.changed:
                if self.queue.remove(future):
                    self.tell_room()
                else:
                    self.cancellations += 1

    def close(self, drain: bool = True) -> None:
        """Stops the workers: after everything queued is answered, or at once, cancelling what is left."""
        with self.changed:
            self.closing = True
            if not drain:
                for job in [*self.queue, *(job for worker in self.workers for job in worker.jobs())]:
                    job.future.cancel()
            self.tell_room()
        for worker in self.workers:
            worker.join()


class _Worker(threading.Thread):
    """Runs batches of its own."""

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
