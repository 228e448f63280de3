"""What takes the sentences of a level, whatever process decodes them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Finish, Job, Progress
from hmc.engine.requests.caller import ANYONE, Caller, Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import LevelWork
from hmc.engine.scheduling.planning import LevelTraits, Planner, plan_job
from hmc.engine.scheduling.postprocessor import announce_cancellation
from hmc.engine.scheduling.queue import WaitingQueue


class LevelEngine(ABC):
    """Takes the sentences of a level. `Engine` decodes them in this process; `hmc.engine.remote` has them decoded in
    another one. Thread-safe; callers only hold futures."""

    def __init__(self, traits: LevelTraits, queue: WaitingQueue, max_rows: int) -> None:
        """traits: what sentences are planned by. queue: where they wait. max_rows: the most rows of one sentence."""
        self._traits = traits
        self.queue = queue
        self.max_rows = max_rows
        self._process = os.getpid()

    @property
    @abstractmethod
    def pending(self) -> int:
        """Sentences that wait or run."""

    @property
    @abstractmethod
    def pending_interactive(self) -> int:
        """Interactive sentences that wait or run."""

    @property
    @abstractmethod
    def work(self) -> LevelWork:
        """What all workers have computed together, and the limits of the level."""

    @property
    @abstractmethod
    def calls_back(self) -> bool:
        """Whether this thread runs the callbacks of futures."""

    @property
    @abstractmethod
    def device(self) -> str:
        """Where the level runs: `cpu`, or CUDA devices with commas between them."""

    @property
    @abstractmethod
    def weights(self) -> dict[str, int]:
        """Weight file → bytes of it that the level holds in this machine's memory; levels that name the same file share
        them."""

    @property
    @abstractmethod
    def device_bytes(self) -> dict[str, int]:
        """What the level holds in the memory of its CUDA devices → its bytes: weights, which levels that name the same
        one share, and caches. Empty on a CPU."""

    @property
    @abstractmethod
    def device_use(self) -> tuple[DeviceUse, ...]:
        """What all levels of the process that decodes have reserved on the CUDA devices of this one. Empty on a CPU."""

    @abstractmethod
    def warm_up(self) -> None:
        """Translates a few sentences on every device, see `hmc.engine.scheduling.warm_up`."""

    @abstractmethod
    def release_memory(self) -> None:
        """Gives memory back to the system that large batches needed and nothing uses now. Requests may go on."""

    @abstractmethod
    def close(self, drain: bool = True) -> None:
        """Stops after every sentence is answered. Without `drain`, cancels all sentences that are left.

        Returns when all callbacks have run. If it is called from a callback, it returns when nothing is decoded any
        more.
        """

    @abstractmethod
    def _queued(self, variants: set[Variant]) -> None:
        """Sentences wait now. variants: decoder variants of those that cannot start yet."""

    @abstractmethod
    def _cancelled(self, future: Future[Any]) -> None:
        """The caller of a sentence that does not wait any more has cancelled it. Called with the queue locked."""

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
        job = plan_job(self._traits, source, options, constraints or Constraints(), progress, priority=priority)
        job.finish = finish
        job.future.on_cancel = self._note_cancellation
        if within_s is not None and not self.pending:
            within_s = None
        can_start = self.queue.put(job, priority, block=block, caller=caller, within_s=within_s, follows=follows)
        self._queued(set() if can_start else _variants([job]))
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
        return Planner(self._traits, options, priority)

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
        note = self._note_cancellation
        for job in jobs:
            job.future.on_cancel = note
        all_can_start = self.queue.put_all(jobs, priority, block=block, caller=caller)
        self._queued(set() if all_can_start else _variants(jobs))
        return [job.future for job in jobs]

    def _note_cancellation(self, future: Future[Any]) -> None:
        announce_cancellation(future)
        with self.queue.changed:
            if not self.queue.remove(future):
                self._cancelled(future)


def _variants(jobs: Sequence[Job]) -> set[Variant]:
    return {job.mode.variant for job in jobs if job.mode.variant is not None}
