"""A worker of a level: the thread that runs batches."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain

from hmc.artifact.errors import HmcError, InternalServiceError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.requests.results import Decoded
from hmc.engine.requests.work import Work
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.batch import Outcome
from hmc.engine.scheduling.postprocessor import Postprocessor, set_exception, set_result
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.engine.scheduling.runners import BatchRunner, RunningBatch
from hmc.engine.scheduling.scheduler import Plan, Scheduler

log = logging.getLogger(__name__)

NOT_FINITE = (
    "the model scored this sentence with a number that is not finite, so there is no translation: its weights are "
    "damaged, or overflow at this precision. Try another level, and compile the bundle again"
)
FAILURES = 3
"""The level fails after this many consecutive failed batches or non-finite scores."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Seconds of a worker's pause after its second consecutive failure, and the longest pause. Each further failure doubles
the pause. A new sentence in the queue ends it."""


class Worker(threading.Thread):
    """Runs the sentences that its scheduler takes from the queue, until the queue is closed and empty."""

    def __init__(
        self, runner: BatchRunner, queue: WaitingQueue, scheduler: Scheduler, postprocessor: Postprocessor
    ) -> None:
        super().__init__(name="hmc-engine", daemon=True)
        self._runner = runner
        self._sessions = runner.sessions
        self._queue = queue
        self._scheduler = scheduler
        self._postprocessor = postprocessor
        self._batches: dict[Mode, RunningBatch] = {}
        self._warm: set[Mode] = set()
        """Modes that the warm-up has prepared. While it lasts, their memory is not given back for others."""
        self._pause_s = 0.0
        self._failures = 0
        """In a row, see `FAILURES`."""
        self.work = Work()
        """What this worker has computed since the warm-up."""

    def run(self) -> None:
        """The thread. It restarts its loop after any error in it."""
        self._runner.on_shortage(self._relieve)
        while True:
            try:
                return self._loop()
            except BaseException as error:
                log.exception("a worker of level %s stopped; it restarts", self._sessions.level.name)
                self._restart(error)

    def _loop(self) -> None:
        """Schedule, step, postprocess."""
        while (plan := self._scheduler.schedule()) is not None:
            self._prepare(plan)
            outcomes = self._step(self._scheduler.begin_step())
            try:
                ended = chain.from_iterable(outcome.ended for outcome in outcomes)
                self._scheduler.end_step([job for job, _ in ended])
            finally:  # also after an error: what has left its batch is not among what `_restart` fails
                self._postprocess(outcomes)
            if self._failures >= FAILURES and not self._scheduler.count():
                self._test(
                    f"level {self._sessions.level.name!r} failed {self._failures} times in a row; the log says why"
                )
        with self._runner.turn():
            self._batches.clear()

    def _prepare(self, plan: Plan) -> None:
        """Frees the caches of evicted batches, and encodes the sentences that start."""
        for mode in plan.evicted:
            self._close(mode)
        for mode, jobs in plan.started.items():
            began = time.perf_counter()
            try:
                if mode not in self._batches:
                    if self._sessions.warming_up:
                        self._warm.add(mode)
                    self._batches[mode] = self._runner.batch(mode)
                self._batches[mode].admit(jobs, partial(self._scheduler.upcoming, mode))
            except Exception as error:  # noqa: BLE001 - the error goes to the sentences of this batch
                self._fail(mode, error)
            seconds = time.perf_counter() - began
            self.work.encoded(seconds)
            self._scheduler.encoded(mode, seconds)

    def _step(self, modes: Iterable[Mode]) -> list[Outcome]:
        """Runs one decoder step of each batch. A batch may run several, see `Scheduler.undisturbed`."""
        outcomes = []
        for mode in modes:
            rows = self._scheduler.rows(mode)
            began = time.perf_counter()
            try:
                outcomes.append(self._batches[mode].step(self._scheduler.undisturbed))
                self.work.decoded(rows, time.perf_counter() - began)
            except Exception as error:  # noqa: BLE001 - the error goes to the sentences of this batch
                self._fail(mode, error)
        return outcomes

    def _postprocess(self, outcomes: Iterable[Outcome]) -> None:
        """Hands the results to the postprocessor, which gives them to the callers."""
        calls: list[Callable[[], object]] = []
        for outcome in outcomes:
            calls += [partial(job.report, tokens) for job, tokens in outcome.certain]
            if outcome.ended:
                calls += self._ended(outcome.ended)
        self._postprocessor.post(calls)

    def _ended(self, ended: list[tuple[Job, Decoded | None]]) -> list[Callable[[], object]]:
        """Notes how long sentences of one mode took that have left their batch. Returns the calls that end them."""
        calls: list[Callable[[], object]] = []
        seen: list[tuple[int, int, float]] = []
        for job, decoded in ended:
            if decoded is None:
                self.work.cancelled += 1
            elif decoded.hypotheses and all(math.isfinite(hypothesis.score) for hypothesis in decoded.hypotheses):
                seen.append((len(job.source), len(decoded.hypotheses[0].ids) + 1, decoded.compute_s))
                self._failures = 0
                if job.finish is None:
                    calls.append(partial(set_result, job.future, decoded))
                else:
                    calls.append(partial(answer, job, decoded))
            else:
                self.work.failed += 1
                self._failures += 1
                calls.append(partial(set_exception, job.future, InternalServiceError(NOT_FINITE)))
        if seen:
            self.work.done += len(seen)
            self._queue.ended(seen, interactive=ended[0][0].mode.interactive)
            if self._failures == 0:
                self._queue.failure = None
                self._pause_s = 0.0
        return calls

    def _fail(self, mode: Mode, error: Exception) -> None:
        """Drops the batch of this mode and gives its sentences the error. Other batches go on."""
        reported: Exception = error
        if not isinstance(error, HmcError):
            log.error("a batch of level %s failed", self._sessions.level.name, exc_info=error)
            reported = RuntimeError(f"decoding failed: {error}")
            self._failures += 1
        self._close_after(error, [mode])
        dropped = self._scheduler.drop(mode)
        self.work.failed += len(dropped)
        self._postprocessor.post([partial(set_exception, job.future, reported) for job in dropped])

    def _close(self, mode: Mode) -> None:
        """Gives up the batch of this mode, if there is one, and its memory. Its session goes too, in a turn on the
        device: at any other time that could end the capture of another level."""
        with self._runner.turn():
            if batch := self._batches.pop(mode, None):
                try:
                    batch.close()
                except Exception:
                    log.exception("memory of a batch of level %s was not given back", self._sessions.level.name)
                del batch  # the last reference, still within the turn

    def _close_after(self, error: BaseException, modes: Iterable[Mode]) -> None:
        """Gives up batches after an error. Its frames refer to them too, and callers may keep it for long."""
        with self._runner.turn():
            for mode in modes:
                self._close(mode)
            traceback.clear_frames(error.__traceback__)

    def _relieve(self) -> bool:
        """Gives the memory of one empty batch back, because the device has too little for another batch. Returns
        whether there was one."""
        if threading.current_thread() is not self:
            return False
        mode = self._scheduler.give_up(self._warm if self._sessions.warming_up else ())
        if mode is None:
            return False
        log.warning(
            "level %s gives up the caches of a kind of request that has no sentences now, because the memory of %s is "
            "short; its next request takes about a second longer. Lower --max-tokens or raise --gpu-memory",
            self._sessions.level.name, self._sessions.device,
        )  # fmt: skip
        self._close(mode)
        return True

    def _restart(self, error: BaseException) -> None:
        """After an error outside of any batch: fails every sentence that waits or runs here, and begins anew."""
        self._close_after(error, list(self._batches))
        reported = InternalServiceError(
            f"level {self._sessions.level.name!r} stopped unexpectedly and was restarted ({error!r}); send the text "
            "again, and report this error if it comes back"
        )
        self.work.failed += self._scheduler.count()
        self._postprocessor.post([partial(set_exception, job.future, reported) for job in self._scheduler.drop_all()])
        self._test(str(reported))

    def _test(self, why: str) -> None:
        """The level has failed, and nothing runs here. After a pause, a sentence of one token tests it; its answer ends
        `queue.failure`. So a level recovers without requests, which a server that is NOT_SERVING may not get.

        Sentences that wait are the test. See `Scheduler.rest` for who takes them.
        """
        queue = self._queue
        self._failures = max(self._failures, FAILURES)  # if the test fails, another one follows
        with queue.changed:
            queue.failure = why
            self._scheduler.rest(self._pause_s)
            self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            if not (len(queue) or queue.closed):
                queue.put(_test_sentence(self._sessions))


def answer(job: Job, decoded: Decoded) -> None:
    """Ends a sentence with what its caller wants of its hypotheses."""
    if job.finish is None:
        set_result(job.future, decoded)
        return
    if job.future.cancelled():
        return
    try:
        result = job.finish(decoded)
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller must not wait for ever
        set_exception(job.future, error)
    else:
        set_result(job.future, result)


def _test_sentence(sessions: LevelSessions) -> Job:
    """A sentence of one unknown token, whose translation has at most one token. It needs only the plain decoder, which
    is always open."""
    source = [sessions.arch.unk_id, sessions.arch.eos_id]
    return Job(source, DecodeOptions(beam_size=1, max_length=1), Constraints(), Rules(1), Mode(1))
