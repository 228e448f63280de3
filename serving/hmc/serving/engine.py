"""The decode engine of one level: continuous batching. A sentence joins the running batch at the next step, a finished
or cancelled one frees its rows at once. One thread owns the sessions and caches; callers only hold futures."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from hmc.artifact.errors import HmcError, InvalidRequestError, OverloadedError
from hmc.serving.batch import Batch
from hmc.serving.constraints import Constraints
from hmc.serving.jobs import Job, Mode, Progress, plan_job
from hmc.serving.options import DecodeOptions
from hmc.serving.results import Decoded
from hmc.serving.sessions import LevelSessions


class Engine:
    """Queue, batches and the thread that runs them."""

    def __init__(self, sessions: LevelSessions, *, queue_size: int, max_rows: int) -> None:
        self.sessions, self.queue_size, self.max_rows = sessions, queue_size, max_rows
        self._queue: deque[Job] = deque()
        self._batches: dict[Mode, Batch] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._running = 0
        self._thread = threading.Thread(target=self._run, name="hmc-engine", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Sentences queued or running."""
        return len(self._queue) + self._running

    def submit(
        self,
        source: Sequence[int],
        options: DecodeOptions,
        constraints: Constraints | None = None,
        progress: Progress | None = None,
        *,
        block: bool = False,
    ) -> Future[Decoded]:
        """Queues a sentence (ids with EOS). Its future may be cancelled at any time.

        A full queue raises OverloadedError, or with block is waited for. Raises InvalidRequestError for a beam that
        can never fit and for what the level cannot do.
        """
        if options.rows > self.max_rows:
            name = "n_best" if options.sampling else "beam_size"
            raise InvalidRequestError(f"{name} {options.rows}: this server runs at most {self.max_rows} rows")
        job = plan_job(self.sessions, source, options, constraints or Constraints(), progress)
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
            self._admit()
            for mode, batch in list(self._batches.items()):
                if batch.jobs:
                    try:
                        batch.step()
                    except Exception as error:  # noqa: BLE001 - its sentences hear of it and the rest go on
                        self._fail(mode, error)
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
        if not self._queue or (free < self.max_rows // 4 and len(self._queue) * self._queue[0].mode.rows > free):
            return
        taken: dict[Mode, list[Job]] = {}
        with self._changed:
            while self._queue and self._queue[0].mode.rows <= free:
                job = self._queue.popleft()
                if not job.future.cancelled():
                    free -= job.mode.rows
                    taken.setdefault(job.mode, []).append(job)
            self._changed.notify_all()
        for mode, jobs in taken.items():
            self._running += len(jobs)
            try:
                if mode not in self._batches:
                    self._batches[mode] = Batch(self.sessions, mode)
                self._batches[mode].admit(jobs)
            except Exception as error:  # noqa: BLE001 - as above
                _fail_jobs(jobs, error)
                self._fail(mode, error)

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
