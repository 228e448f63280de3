"""The decode engine of one level: continuous batching. A sentence joins the running batch at the next step, a finished
or cancelled one frees its rows at once. One thread owns the sessions and caches; callers only hold futures."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from hmc.artifact.errors import HmcError, InvalidRequestError, OverloadedError
from hmc.serving.caches import HostCaches
from hmc.serving.device_caches import DeviceCaches
from hmc.serving.options import Decoded, DecodeOptions
from hmc.serving.search import BeamState, advance, candidates_needed
from hmc.serving.sessions import LevelSessions


@dataclass
class Job:
    """One sentence on its way through the engine."""

    source: Sequence[int]
    options: DecodeOptions
    limit: int
    future: Future[Decoded] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)
    started: float = 0.0


class Batch:
    """The running sentences of one beam size: jobs, search state and caches, index for index."""

    def __init__(self, sessions: LevelSessions, beam: int) -> None:
        caches = HostCaches if sessions.device.kind == "cpu" else DeviceCaches
        self.caches: HostCaches | DeviceCaches = caches(sessions, beam, candidates_needed(beam))
        self.state = BeamState(beam, sessions.arch.pad_id, sessions.arch.eos_id)
        self.jobs: list[Job] = []
        self.sessions = sessions

    @property
    def rows(self) -> int:
        """Rows in use."""
        return len(self.jobs) * self.state.beam

    def admit(self, jobs: list[Job]) -> None:
        """Encodes new sentences together and appends them."""
        now = time.monotonic()
        for job in jobs:
            job.started = now
        cross, lengths = self.sessions.encode([job.source for job in jobs])
        self.caches.add(cross, lengths)
        self.state.add([job.limit for job in jobs], [job.options.length_penalty for job in jobs])
        self.jobs += jobs

    def step(self) -> None:
        """One decoder step, one turn of search; sentences that are done or cancelled leave."""
        beam = self.state.beam
        cached = np.repeat(self.state.lengths, beam).astype(np.int32)
        log_probs, ids = self.caches.run(self.state.last_tokens(), cached)
        turn = advance(self.state, log_probs, ids)
        done = set(turn.done.tolist())
        for index in done:
            self._finish(index)
        gone = done | {i for i, job in enumerate(self.jobs) if job.future.cancelled()}
        if gone:
            stay = _compact(len(self.jobs), gone)
            parents = (turn.parents.reshape(-1, beam) % beam)[stay]
            self._keep(stay)
            turn_parents = (np.arange(len(stay))[:, None] * beam + parents).reshape(-1)
        else:
            turn_parents = turn.parents
        if self.jobs:
            self.caches.reorder(turn_parents, int(self.state.lengths.max()))

    def drop_all(self) -> list[Job]:
        """Forgets every sentence (after a failure) and returns their jobs."""
        jobs = list(self.jobs)
        self._keep([])
        return jobs

    def _keep(self, stay: list[int]) -> None:
        self.caches.keep(stay)
        self.state.keep(stay)
        self.jobs = [self.jobs[i] for i in stay]

    def _finish(self, index: int) -> None:
        job, now = self.jobs[index], time.monotonic()
        hypotheses = tuple(self.state.finished[index][: job.options.n_best])
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(Decoded(hypotheses, job.started - job.submitted, now - job.started))


def _compact(count: int, gone: set[int]) -> list[int]:
    """The order that closes the gaps with the fewest moves: sentences from the end fill them."""
    left = count - len(gone)
    spare = iter([i for i in range(count - 1, left - 1, -1) if i not in gone])
    return [next(spare) if i in gone else i for i in range(left)]


class Engine:
    """Queue, batches and the thread that runs them."""

    def __init__(self, sessions: LevelSessions, *, queue_size: int, max_rows: int) -> None:
        self.sessions, self.queue_size, self.max_rows = sessions, queue_size, max_rows
        self._queue: deque[Job] = deque()
        self._batches: dict[int, Batch] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._running = 0
        self._thread = threading.Thread(target=self._run, name="hmc-engine", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Sentences queued or running."""
        return len(self._queue) + self._running

    def submit(self, source: Sequence[int], options: DecodeOptions, *, block: bool = False) -> Future[Decoded]:
        """Queues a sentence (ids with EOS). Its future may be cancelled at any time.

        A full queue raises OverloadedError, or with block is waited for. Raises InvalidRequestError for a beam that
        can never fit.
        """
        if options.beam_size > self.max_rows:
            raise InvalidRequestError(f"beam_size {options.beam_size}: this server runs at most {self.max_rows} rows")
        longest = self.sessions.arch.max_positions - 1
        job = Job(source, options, min(options.max_length or 2 * len(source) + 10, longest))
        with self._changed:
            while len(self._queue) >= self.queue_size and not self._closing:
                if not block:
                    raise OverloadedError(
                        f"the queue of {self.queue_size} sentences is full; try again later or choose a smaller level"
                    )
                self._changed.wait(0.1)
            if self._closing:
                raise OverloadedError("the engine is shutting down; send the request elsewhere")
            self._queue.append(job)
            self._changed.notify_all()
        return job.future

    def close(self, drain: bool = True) -> None:
        """Stops the thread: after everything queued is answered, or at once, cancelling what is left."""
        with self._changed:
            self._closing = True
            if not drain:
                for job in [*self._queue, *(job for batch in self._batches.values() for job in batch.jobs)]:
                    job.future.cancel()
            self._changed.notify_all()
        self._thread.join()

    # -- the engine's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self._admit()
                for batch in self._batches.values():
                    if batch.jobs:
                        batch.step()
            except Exception as error:  # noqa: BLE001 - whatever failed, its sentences hear of it and the rest go on
                self._fail(error)
            self._running = sum(len(b.jobs) for b in self._batches.values())

    def _wait_for_work(self) -> bool:
        with self._changed:
            while not self._queue and not self._running:
                if self._closing:
                    return False
                self._changed.wait()
        return True

    def _admit(self) -> None:
        """Moves queued sentences into batches while rows are free.

        While plenty are queued, waits until a quarter of the rows is free: encoding many at once is cheaper.
        """
        free = self.max_rows - sum(batch.rows for batch in self._batches.values())
        if not self._queue or (
            free < self.max_rows // 4 and len(self._queue) * self._queue[0].options.beam_size > free
        ):
            return
        taken: dict[int, list[Job]] = {}
        with self._changed:
            while self._queue and self._queue[0].options.beam_size <= free:
                job = self._queue.popleft()
                if not job.future.cancelled():
                    free -= job.options.beam_size
                    taken.setdefault(job.options.beam_size, []).append(job)
            self._changed.notify_all()
        for beam, jobs in taken.items():
            batch = self._batches.setdefault(beam, Batch(self.sessions, beam))
            self._running += len(jobs)
            try:
                batch.admit(jobs)
            except Exception as error:
                _fail_jobs(jobs, error)
                raise

    def _fail(self, error: Exception) -> None:
        """A step failed: its sentences get the error, the engine goes on with the next ones."""
        for batch in self._batches.values():
            _fail_jobs(batch.jobs, error)
        self._batches.clear()


def _fail_jobs(jobs: Sequence[Job], error: Exception) -> None:
    wrapped = error if isinstance(error, HmcError) else RuntimeError(f"decoding failed: {error}")
    for job in jobs:
        if not job.future.done() and job.future.set_running_or_notify_cancel():
            job.future.set_exception(wrapped)
