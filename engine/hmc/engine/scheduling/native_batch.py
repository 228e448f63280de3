"""The running batch of one mode whose search runs in the native executor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hmc.engine.decoding.job import Job, Mode
from hmc.engine.native.level import NativeBatch, NativeLevel
from hmc.engine.requests.results import Decoded, DecodedHypothesis
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.scheduling.batch import Outcome, compact

AT_ONCE_S = 0.002
"""About how long the executor computes before the host looks whether there is something else to do."""
HELD_S = 0.001
"""About how long the executor keeps what an ended sentence has found while others go on, so that several come back
together. Nothing of interactive sentences is kept."""


class NativeSearchBatch:
    """Jobs, and the executor's batch; sentence n is at index n of both."""

    def __init__(self, sessions: ProgramSessions, mode: Mode, many: int = 1) -> None:
        """An empty batch of a level that the native executor runs. many: sentences after whose end others can start,
        so that the executor returns. Raises MemoryError."""
        assert isinstance(sessions.program, NativeLevel)
        self.batch = NativeBatch(sessions.program, mode.rows, sessions.threads)
        self.lexicon = sessions.lexicon
        self.jobs: list[Job] = []
        self.steps = 0
        """That it has run."""
        self._many = many
        self._held_s = 0.0 if mode.interactive else HELD_S
        self._step_s = AT_ONCE_S
        """Seconds of the last step."""
        self._n_best = 1
        """Most hypotheses that one of the sentences wants."""

    def admit(self, jobs: list[Job], upcoming: Callable[[], list[Job]] = list) -> None:  # noqa: ARG002 - on a device
        """Encodes new sentences and appends them."""
        now = time.monotonic()
        most = 1 if not self.jobs else self._n_best
        for job in jobs:
            job.started = now
            most = max(most, job.options.n_best)
        lists = [self.lexicon.candidates(job.source) for job in jobs] if self.lexicon else []
        self.batch.admit([job.source for job in jobs], [job.rules for job in jobs], lists)
        self.jobs += jobs
        self._n_best = most

    def close(self) -> None:
        """Gives the memory back. The batch may not be used afterwards."""
        self.batch.close()

    def step(self, undisturbed: Callable[[], bool]) -> Outcome:
        """Runs steps until a search has ended, or until `undisturbed` says that there is something else to do.
        Sentences whose search has ended or that were cancelled leave the batch."""
        while True:
            began = time.monotonic()
            steps = self.batch.run(max(1, int(AT_ONCE_S / self._step_s)), int(self._held_s / self._step_s), self._many)
            self.steps += steps
            self._step_s = max((time.monotonic() - began) / steps, 1e-6)
            quiet = undisturbed()
            if self.batch.ended or not quiet:
                break
        outcome = Outcome()
        if self.batch.ended:
            outcome.ended = self._ended()
        if not quiet:  # otherwise none was cancelled
            self._drop_cancelled(outcome)
        return outcome

    def _ended(self) -> list[tuple[Job, Decoded | None]]:
        """The results of the sentences whose searches have ended. They leave the jobs as they have left the batch."""
        places, failed, ranks, lengths, completes, tokens, scores = self.batch.collect(self._n_best)
        now = time.monotonic()
        results: list[tuple[Job, Decoded | None]] = []
        entry = 0
        last = 0
        for place, has_failed in zip(places, failed, strict=True):
            job = self.jobs[place]
            best = []
            for number in range(self._n_best):
                first = last
                length = lengths[entry]
                last += length
                if length and number < job.options.n_best:
                    complete = completes[entry]
                    ids = tokens[first : last - complete]
                    best.append(DecodedHypothesis(ids, ranks[entry], complete == 1, scores[first:last]))
                entry += 1
            if has_failed:
                best = [DecodedHypothesis((), math.nan, complete=False)]
            results.append((job, Decoded(tuple(best), job.started - job.submitted, now - job.started)))
        for place in sorted(places, reverse=True):
            del self.jobs[place]
        return results

    def _drop_cancelled(self, outcome: Outcome) -> None:
        gone = {index for index, job in enumerate(self.jobs) if job.future.cancelled()}
        if gone:
            outcome.ended += [(self.jobs[index], None) for index in gone]
            stay = compact(len(self.jobs), gone)
            self.batch.keep(stay)
            self.jobs = [self.jobs[index] for index in stay]
