"""The running batch of one mode whose search runs in the native executor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from hmc.engine.arrays import NEG_INF
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.native.level import FAILED, RUNS, NativeBatch, NativeLevel, Rule
from hmc.engine.requests.results import Decoded, DecodedHypothesis
from hmc.engine.scheduling.batch import Outcome, compact

AT_ONCE_S = 0.002
"""About how long the executor computes before the host looks whether there is something else to do."""


class NativeSearchBatch:
    """Jobs, and the executor's batch; sentence n is at index n of both."""

    def __init__(self, level: NativeLevel, mode: Mode, threads: int) -> None:
        """An empty batch. threads: that divide each step among them. Raises MemoryError."""
        self.batch = NativeBatch(level, mode.rows, threads)
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
        self.batch.admit([job.source for job in jobs], [_rule(job) for job in jobs])
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
            ended = np.flatnonzero(states != RUNS).tolist()
            quiet = undisturbed()
            if ended or not quiet:
                break
        outcome = Outcome()
        if ended:
            outcome.ended += self._decoded(ended, states[ended].tolist(), int(lengths[ended].max()))
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
        """The results of sentences whose searches have ended, in so many steps at most. states: of each."""
        jobs = [self.jobs[index] for index in ended]
        found = self.batch.collect(ended, steps, max(job.options.n_best for job in jobs))
        now = time.monotonic()
        results: list[tuple[Job, Decoded | None]] = []
        for job, state, *entries in zip(jobs, states, *[array.tolist() for array in found], strict=True):
            if state == FAILED:
                best = [DecodedHypothesis((), math.nan, complete=False)]
            else:
                best = _hypotheses(*entries)[: job.options.n_best]
            results.append((job, Decoded(tuple(best), job.started - job.submitted, now - job.started)))
        return results


def _hypotheses(
    ranks: list[float], lengths: list[int], complete: list[int], tokens: list[list[int]], scores: list[list[float]]
) -> list[DecodedHypothesis]:
    """The hypotheses of one sentence, from the entries of `Found`."""
    found = []
    for rank, length, ended, ids, each in zip(ranks, lengths, complete, tokens, scores, strict=True):
        if rank > NEG_INF:
            found.append(DecodedHypothesis(tuple(ids[: length - ended]), rank, bool(ended), tuple(each[:length])))
    return found


def _rule(job: Job) -> Rule:
    rules = job.rules
    return Rule(rules.limit, rules.min_length, rules.length_penalty, rules.enough or 0)
