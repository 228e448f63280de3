"""The running batch of one mode: each step runs the decoder once for the rows of all its sentences."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from hmc.engine.arrays import NEG_INF, Arrays, Ints
from hmc.engine.caches.choice import caches_for
from hmc.engine.caches.interface import Caches
from hmc.engine.decoding import greedy
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import DecodeState
from hmc.engine.decoding.strategies import strategy_for
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.requests.results import Decoded
from hmc.engine.runtime.sessions import LevelSessions


@dataclass
class Outcome:
    """The results of a step."""

    ended: list[tuple[Job, Decoded | None]] = field(default_factory=list)
    """Sentences that left their batch, each with its hypotheses, or with None if it was cancelled."""
    certain: list[tuple[Job, tuple[int, ...]]] = field(default_factory=list)
    """Sentences with `Job.progress` that have new certain tokens, each with all its certain tokens."""


class HostBatch:
    """Jobs, search state and caches; sentence n is at index n of each."""

    def __init__(self, sessions: LevelSessions, mode: Mode, max_rows: int = 128, max_tokens: int = MAX_TOKENS) -> None:
        """An empty batch. max_rows, max_tokens: bounds of its caches on a device, see `Chain`. Opens the mode's decoder
        if it is not open; raises InvalidArtifactError if that fails."""
        arch = sessions.arch
        self.sessions = sessions
        self.mode = mode
        self.caches = caches_for(sessions, mode.variant, mode.rows, max_rows, max_tokens)
        if sessions.warming_up:
            self.caches.warm_up()
        self.strategy = strategy_for(mode.variant, arch)
        self.state = DecodeState(mode.rows, arch.pad_id, arch.eos_id, arch.decoder_start)
        self.jobs: list[Job] = []
        self.steps = 0
        """Decoder steps that it has run, without those ahead."""

    def admit(self, jobs: list[Job], upcoming: Callable[[], list[Job]] = list) -> None:  # noqa: ARG002 - on a device
        """Encodes new sentences and appends them."""
        now = time.monotonic()
        for job in jobs:
            job.started = now
        for group in self.caches.groups([len(job.source) for job in jobs]):
            self._append([jobs[i] for i in group])

    def _append(self, jobs: list[Job]) -> None:
        rules = [job.rules for job in jobs]
        traces = [job.trace() for job in jobs]
        prefixes = [job.constraints.prefix for job in jobs]
        limits = [rule.limit for rule in rules]
        self.caches.add([job.source for job in jobs], prefixes, limits)
        self.state.add(rules, traces, independent=self.strategy.independent)
        self.jobs += jobs

    def close(self) -> None:
        """Gives the memory of the caches back. The batch may not be used afterwards."""
        self.caches.close()

    def step(self, undisturbed: Callable[[], bool]) -> Outcome:
        """Runs one decoder step and one step of the search; with greedy search several, while `undisturbed`. Sentences
        whose search has ended or that were cancelled leave the batch."""
        beam = self.mode.rows
        self.steps += 1
        outputs = self.caches.run(self.strategy.inputs(self.state, self.jobs))
        if self.caches.steps_ahead and not any(job.watched for job in self.jobs):
            outputs = run_ahead(self.caches, self.state, outputs, undisturbed)
        if "attention" in outputs:
            for trace, weights in zip(self.state.traces, outputs["attention"], strict=True):
                if trace is not None:
                    trace.record(weights)
        result = self.strategy.advance(self.state, self.jobs, outputs)
        done = set(result.done.tolist())
        cancelled = {i for i, job in enumerate(self.jobs) if job.future.cancelled()} - done
        outcome = Outcome()
        outcome.ended += [(self.jobs[index], self._decoded(index)) for index in done]
        outcome.ended += [(self.jobs[index], None) for index in cancelled]
        outcome.certain += self._certain(done)
        if failed := [index for index in done if self.state.failed(index)]:
            self.caches.clean(failed)
        if outcome.ended:
            stay = compact(len(self.jobs), done | cancelled)
            in_sentence = (result.parents.reshape(-1, beam) % beam)[stay]
            self._keep(stay)
            parents = (np.arange(len(stay))[:, None] * beam + in_sentence).reshape(-1)
        else:
            parents = result.parents
        if self.jobs:
            self.caches.reorder(parents)
        return outcome

    def _keep(self, stay: list[int]) -> None:
        self.caches.keep(stay)
        self.state.keep(stay)
        self.jobs = [self.jobs[i] for i in stay]

    def _decoded(self, index: int) -> Decoded:
        job = self.jobs[index]
        now = time.monotonic()
        hypotheses = tuple(self.state.finished[index][: job.options.n_best])
        return Decoded(hypotheses, job.started - job.submitted, now - job.started)

    def _certain(self, done: set[int]) -> list[tuple[Job, tuple[int, ...]]]:
        """For `Outcome.certain`. When a sentence is done, all tokens of its best hypothesis are certain."""
        certain = []
        for index, job in enumerate(self.jobs):
            if job.progress is not None:
                best = self.state.finished[index][:1] if index in done else []
                tokens = best[0].ids if best else certain_tokens(self.state, index)
                if len(tokens) > job.reported:
                    job.reported = len(tokens)
                    certain.append((job, tokens))
        return certain


def run_ahead(caches: Caches, state: DecodeState, outputs: Arrays, undisturbed: Callable[[], bool]) -> Arrays:
    """Runs further steps after one, whose `outputs` are given, while every row appends its best token and none ends.

    Returns the outputs of the last step, which the search has not read yet; the tokens of the steps before it are in
    `state`. undisturbed: asked before each step. Between two steps the decoder's weights push everything of Python out
    of the processor's caches, so only what is needed to go on is done there, and the rest once, at the end.
    """
    most = min(int((state.limits - state.lengths).min()) - 1, caches.steps_ahead)
    taken: list[Ints] = []
    scored: list[npt.NDArray[np.float32]] = []
    while len(taken) < most and undisturbed():
        tokens = outputs["ids"][:, 0]
        scores = outputs["scores"][:, 0]
        if not greedy.only_extends(state, tokens, scores):
            break
        taken.append(tokens.copy())
        scored.append(scores.copy())
        outputs = caches.run_next(tokens)
    if taken:
        greedy.extend(state, np.stack(taken), np.stack(scored))
    return outputs


def certain_tokens(state: DecodeState, sentence: int) -> tuple[int, ...]:
    """The longest prefix that all hypotheses of a sentence share, running and ended ones. No later step of the search
    can change it."""
    length = state.lengths[sentence]
    running = state.tokens[sentence, state.scores[sentence] > NEG_INF, :length].tolist()
    every = [*running, *(h.ids for h in state.finished[sentence])]
    shared = takewhile(lambda column: len(set(column)) == 1, zip(*every, strict=False))
    return tuple(int(column[0]) for column in shared)


def compact(count: int, gone: set[int]) -> list[int]:
    """The order that closes the gaps with the fewest moves: sentences from the end fill them."""
    remaining = count - len(gone)
    order = list(range(remaining))
    spare = (index for index in range(count - 1, remaining - 1, -1) if index not in gone)
    for index in sorted(gone):
        if index < remaining:
            order[index] = next(spare)
    return order
