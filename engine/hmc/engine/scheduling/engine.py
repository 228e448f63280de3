"""The decode engine of one level, with continuous batching: a sentence joins a running batch at the next step, and
frees its rows as soon as it has ended or was cancelled."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Finish, Job, Progress
from hmc.engine.requests.caller import ANYONE, Caller, Priority
from hmc.engine.requests.options import MAX_TOKENS, DecodeOptions
from hmc.engine.requests.work import BatchLoad, LevelWork, Work
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.planning import Planner, plan_job
from hmc.engine.scheduling.postprocessor import Postprocessor, announce_cancellation, set_exception
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.engine.scheduling.runners import runner_of
from hmc.engine.scheduling.scheduler import Scheduler
from hmc.engine.scheduling.worker import Worker


def rows_of_worker(max_rows: int, workers: int) -> int:
    """Rows of each worker: its part of `max_rows`. Raises InvalidRequestError if the default beam fits `max_rows`, but
    not this part."""
    rows, default = -(-max_rows // workers), DecodeOptions().rows
    if rows < min(default, max_rows):
        most = max(1, max_rows // default)
        raise InvalidRequestError(
            f"workers {workers}: max_rows {max_rows} leaves {rows} rows to each, and the default beam needs {default}; "
            f"choose at most {most} worker{'s' if most > 1 else ''}, or max_rows {workers * default} or more"
        )
    return rows


class Engine:
    """The queue of a level, and the workers that take from it. Thread-safe; callers only hold futures."""

    def __init__(
        self,
        sessions: LevelSessions | Sequence[LevelSessions],
        *,
        queue_size: int,
        max_rows: int,
        max_tokens: int = MAX_TOKENS,
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """sessions: of the level; several are its replicas, one for each device, which take from one queue. queue_size:
        sentences that may wait. max_rows: hypotheses decoded together on one device. max_tokens: bound on the cache
        memory of one device, counted as rows × the positions that the longest sentence of their batch may need. A
        sentence that needs more runs alone. In device form it bounds each mode's pools, see `PoolBudget`. workers: of
        each replica; `max_rows` and `max_tokens` are divided among them, and they share its sessions. clock: returns
        seconds; it times idle batches and the slices of time that batches get.

        Raises InvalidRequestError for several workers on a device other than the CPU, and for so many workers that the
        default beam fits none of them.
        """
        self.replicas = [sessions] if isinstance(sessions, LevelSessions) else list(sessions)
        self.sessions = self.replicas[0]
        """Of the first replica. All have the same graphs."""
        if workers > 1 and self.sessions.device.kind != "cpu":
            raise InvalidRequestError(f"workers {workers}: on {self.sessions.device} a level has one; choose 1")
        self.max_rows = rows_of_worker(max_rows, workers)
        self.queue = WaitingQueue(queue_size, clock)
        self._process = os.getpid()
        self._schedulers: list[Scheduler] = []
        self._opening: dict[Variant, threading.Thread] = {}
        self._postprocessor = Postprocessor()
        tokens = -(-max_tokens // workers)
        self.workers: list[Worker] = []
        self._pairs: list[tuple[LevelSessions, Scheduler]] = []
        for replica in self.replicas:
            runner = runner_of(replica, self.max_rows, tokens)
            for _ in range(workers):
                scheduler = Scheduler(
                    self.queue, self._schedulers,
                    max_rows=self.max_rows, max_tokens=tokens, budget=runner.budget, clock=clock,
                )  # fmt: skip
                self._pairs.append((replica, scheduler))
                self.workers.append(Worker(runner, self.queue, scheduler, self._postprocessor))
        for worker in self.workers:
            worker.start()

    @property
    def pending(self) -> int:
        """Sentences that wait or run."""
        with self.queue.changed:
            return len(self.queue) + sum(scheduler.count() for scheduler in self._schedulers)

    @property
    def pending_interactive(self) -> int:
        """Interactive sentences that wait or run."""
        with self.queue.changed:
            return self.queue.waiting_interactive + sum(each.count(interactive=True) for each in self._schedulers)

    @property
    def work(self) -> LevelWork:
        """What all workers have computed together, and the limits of the level."""
        total = Work.total(worker.work for worker in self.workers)
        rows = self.max_rows * len(self.workers)
        batches = tuple(
            BatchLoad(number, sentences, sentences * mode.rows, mode.interactive)
            for number, scheduler in enumerate(self._schedulers)
            for mode, sentences in scheduler.batches()
        )
        return LevelWork(total, len(self.workers), rows, len(self.queue), self.queue.size, batches)

    @property
    def calls_back(self) -> bool:
        """Whether this thread runs the callbacks of the engine."""
        return self._postprocessor.is_this_thread

    @property
    def failure(self) -> str | None:
        """Why a worker failed. None if none did, or if a sentence has been answered since."""
        return self.queue.failure

    def submit(
        self,
        source: Sequence[int],
        options: DecodeOptions,
        constraints: Constraints | None = None,
        progress: Progress | None = None,
        finish: Finish | None = None,
        *,
        block: bool = False,
        priority: Priority = Priority.INTERACTIVE,
        caller: Caller = ANYONE,
        within_s: float | None = None,
        follows: bool = False,
    ) -> Future[Any]:
        """Queues a sentence. source: token ids, EOS last. finish: makes the future's result from the hypotheses; None:
        it is `Decoded`. block: wait while the queue is full. caller: callers take turns. within_s: seconds that the
        caller waits for the result; a level that does nothing now accepts any. follows: the sentence takes the place of
        one that has just ended, also in a full queue.

        The future may be cancelled at any time. The sentence then leaves the queue at once, or its batch after the
        present step. Callbacks of the future, `finish` and `progress` run one after the other in one thread of the
        engine. A slow one delays other answers, but no decoding. One that waits for another answer of this engine waits
        for ever.

        Raises OverloadedError for a full queue unless `block`, InvalidRequestError for more rows than a worker has and
        for options that the level does not have, UnavailableError once closed, and FailedPreconditionError in a forked
        process. Raises DeadlineExceededError if `within_s` is too short, as far as is known from what the level did of
        late. The future's error is InternalServiceError if the model scores the sentence with NaN or infinity, and
        if the engine failed.
        """
        self._check(options)
        job = plan_job(self.sessions, source, options, constraints or Constraints(), progress, priority=priority)
        job.finish = finish
        job.future.add_done_callback(self._note_cancellation)
        if within_s is not None and not self.pending:
            within_s = None
        can_start = self.queue.put(job, priority, block=block, caller=caller, within_s=within_s, follows=follows)
        if not can_start:
            self._open_aside(job.mode.variant)
        return job.future

    def _check(self, options: DecodeOptions) -> None:
        """Raises the errors of `submit` that concern this process and the rows of a worker."""
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

    def planner(self, options: DecodeOptions, priority: Priority = Priority.INTERACTIVE) -> Planner:
        """Plans sentences of these options for `submit_all`. Raises as `submit`."""
        self._check(options)
        return Planner(self.sessions, options, priority)

    def submit_all(
        self,
        jobs: Sequence[Job],
        *,
        block: bool = False,
        priority: Priority = Priority.INTERACTIVE,
        caller: Caller = ANYONE,
    ) -> list[Future[Any]]:
        """Queues sentences that `planner` has planned, at less cost for each than `submit`. Where one is refused, none
        is queued. Raises as `submit`."""
        for job in jobs:
            job.future.add_done_callback(self._note_cancellation)
        if not self.queue.put_all(jobs, priority, block=block, caller=caller):
            for variant in {job.mode.variant for job in jobs}:
                self._open_aside(variant)
        return [job.future for job in jobs]

    @contextmanager
    def only(self, replica: LevelSessions) -> Iterator[None]:
        """Within the `with` block no sentence starts on any other replica. Sentences that run go on."""
        others = [scheduler for sessions, scheduler in self._pairs if sessions is not replica]
        try:
            for scheduler in others:
                scheduler.pause(True)
            yield
        finally:
            for scheduler in others:
                scheduler.pause(False)

    def close(self, drain: bool = True) -> None:
        """Stops the workers after every sentence is answered. Without `drain`, cancels all sentences that are left.

        Returns when all callbacks have run. If it is called from a callback, it returns when the workers have stopped.
        """
        self.queue.close()
        if not drain:
            with self.queue.changed:  # no sentence is on its way from the queue to a worker meanwhile
                jobs = [*self.queue, *(job for scheduler in self._schedulers for job in scheduler.running())]
            for job in jobs:
                job.future.cancel()
        with self.queue.changed:
            opening = list(self._opening.values())
        for thread in (*opening, *self.workers):
            thread.join()
        for replica in self.replicas:
            replica.close()
        self._postprocessor.close()

    def _note_cancellation(self, future: Future[Any]) -> None:
        if not future.cancelled():
            return
        announce_cancellation(future)
        with self.queue.changed:
            if not self.queue.remove(future):
                for scheduler in self._schedulers:
                    scheduler.note_cancelled(future)

    # ---- decoder variants ----

    def _open_aside(self, variant: Variant | None) -> None:
        """Starts a thread that opens a variant of the decoder, if none does yet. Opening can take seconds; other
        sentences go on meanwhile."""
        with self.queue.changed:
            if variant is not None and variant not in self._opening and variant not in self.queue.open_variants:
                opening = threading.Thread(target=self._open, args=(variant,), name=f"hmc-open-{variant}", daemon=True)
                self._opening[variant] = opening
                opening.start()

    def _open(self, variant: Variant) -> None:
        """Opens the variant. The sentences that need it can then start; if it cannot be opened, they fail."""
        try:
            for replica in self.replicas:
                replica.decoder(variant)
        except Exception as error:  # noqa: BLE001 - the error goes to the sentences that need this variant
            with self.queue.changed:  # with the lock, `close` ends the postprocessor after these calls, not before
                jobs = self.queue.take_held(variant)
                del self._opening[variant]  # the next sentence tries again
                self._postprocessor.post([partial(set_exception, job.future, error) for job in jobs])
        else:
            self.queue.open_variant(variant)
