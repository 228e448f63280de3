"""The running batch of one mode whose search runs in the native executor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from hmc.engine.decoding.job import Job, Mode
from hmc.engine.native.level import FAILED, RUNS, NativeBatch, NativeLevel, Rule
from hmc.engine.requests.results import Decoded, DecodedHypothesis
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.scheduling.batch import Outcome, compact

AT_ONCE_S = 0.002
"""About how long the executor computes before the host looks whether there is something else to do."""


class NativeSearchBatch:
    """Jobs, and the executor's batch; sentence n is at index n of both."""

    def __init__(self, sessions: ProgramSessions, mode: Mode) -> None:
        """An empty batch of a level that the native executor runs. Raises MemoryError."""
        assert isinstance(sessions.program, NativeLevel)
        self.batch = NativeBatch(sessions.program, mode.rows, sessions.threads)
        self.lexicon = sessions.lexicon
        self.jobs: list[Job] = []
        self.steps = 0
        """That it has run."""
        self._step_s = AT_ONCE_S
        """Seconds of the last step."""

    def admit(self, jobs: list[Job], upcoming: Callable[[], list[Job]] = list) -> None:  # noqa: ARG002 - on a device
        """Encodes new sentences and appends them."""
        now = time.monotonic()
        for job in jobs:
            job.started = now
        lists = [self.lexicon.candidates(job.source) for job in jobs] if self.lexicon else []
        self.batch.admit([job.source for job in jobs], [_rule(job) for job in jobs], lists)
        self.jobs += jobs

    def close(self) -> None:
        """Gives the memory back. The batch may not be used afterwards."""
        self.batch.close()

    def step(self, undisturbed: Callable[[], bool]) -> Outcome:
        """Runs steps until a search has ended, or until `undisturbed` says that there is something else to do.
        Sentences whose search has ended or that were cancelled leave the batch."""
        while True:
            began = time.monotonic()
            steps = self.batch.run(max(1, int(AT_ONCE_S / self._step_s)))
            self.steps += steps
            self._step_s = max((time.monotonic() - began) / steps, 1e-6)
            states, lengths = self.batch.states()
            ended = [index for index, state in enumerate(states) if state != RUNS] if any(states) else []
            quiet = undisturbed()
            if ended or not quiet:
                break
        outcome = Outcome()
        if ended:
            outcome.ended = self._decoded(ended, states, max(lengths[index] for index in ended))
        gone = set(ended)
        if not quiet:  # otherwise none was cancelled
            for index, job in enumerate(self.jobs):
                if index not in gone and job.future.cancelled():
                    gone.add(index)
                    outcome.ended.append((job, None))
        if gone:
            stay = compact(len(self.jobs), gone)
            self.batch.keep(stay)
            self.jobs = [self.jobs[index] for index in stay]
        return outcome

    def _decoded(self, ended: list[int], states: list[int], steps: int) -> list[tuple[Job, Decoded | None]]:
        """The results of sentences whose searches have ended, in so many steps at most. states: of all sentences."""
        jobs = [self.jobs[index] for index in ended]
        found = self.batch.collect(ended, steps, max(job.options.n_best for job in jobs))
        now = time.monotonic()
        results: list[tuple[Job, Decoded | None]] = []
        for index, job, hypotheses in zip(ended, jobs, found, strict=True):
            best = [
                DecodedHypothesis(
                    tuple(each.tokens[: len(each.tokens) - each.complete]),
                    each.rank,
                    bool(each.complete),
                    tuple(each.scores),
                )
                for each in hypotheses[: job.options.n_best]
            ]
            if states[index] == FAILED:
                best = [DecodedHypothesis((), math.nan, complete=False)]
            results.append((job, Decoded(tuple(best), job.started - job.submitted, now - job.started)))
        return results


def _rule(job: Job) -> Rule:
    rules = job.rules
    return Rule(rules.limit, rules.min_length, rules.length_penalty, rules.enough or 0)
