"""The decode engine of one level: continuous batching. A sentence joins a running batch at the next step, a finished or
cancelled one frees its rows at once. Its workers own the batches; callers only hold futures."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError, OverloadedError, UnavailableError
from hmc.serving.constraints import Constraints
from hmc.serving.jobs import Progress, plan_job
from hmc.serving.lanes import Lanes
from hmc.serving.options import MAX_TOKENS, DecodeOptions
from hmc.serving.results import Decoded
from hmc.serving.sessions import LevelSessions
from hmc.serving.worker import Worker


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
        self.workers = [Worker(self) for _ in range(workers)]
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
