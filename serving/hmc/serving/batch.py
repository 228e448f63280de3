"""The running batch of one mode: one decoder step and one turn of search for all its sentences at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hmc.artifact.bundle import Variant
from hmc.serving.ahead import run_ahead
from hmc.serving.cache_choice import caches_for
from hmc.serving.device_caches import DeviceCaches
from hmc.serving.device_rows import DeviceRows
from hmc.serving.jobs import Job, Mode
from hmc.serving.padding import alike
from hmc.serving.progress import tell
from hmc.serving.results import Decoded
from hmc.serving.row_caches import RowCaches
from hmc.serving.sessions import LevelSessions
from hmc.serving.state import DecodeState
from hmc.serving.turns import BeamTurns, GreedyTurns, SampleTurns, Turns


class Batch:
    """Jobs, search state and caches, index for index."""

    def __init__(self, sessions: LevelSessions, mode: Mode) -> None:
        """Opens the mode's decoder if it was not. Raises InvalidArtifactError."""
        arch = sessions.arch
        self.sessions, self.mode = sessions, mode
        self.caches = caches_for(sessions, mode)
        turns: dict[Variant | None, type[BeamTurns | SampleTurns]] = {"greedy": GreedyTurns, "sampling": SampleTurns}
        self.turns: Turns = turns.get(mode.variant, BeamTurns)(arch)
        self.state = DecodeState(mode.rows, arch.pad_id, arch.eos_id)
        self.jobs: list[Job] = []

    @property
    def rows(self) -> int:
        """Rows in use."""
        return len(self.jobs) * self.mode.rows

    @property
    def longest(self) -> int:
        """Positions that a row may need, of the sentence that may need most."""
        return max((job.longest for job in self.jobs), default=0)

    def admit(self, jobs: list[Job]) -> None:
        """Encodes new sentences, those of about one length together, and appends them."""
        now = time.monotonic()
        for job in jobs:
            job.started = now
        if isinstance(self.caches, DeviceCaches):
            self._append(jobs)
        else:
            for group in alike([len(job.source) for job in jobs]):
                self._append([jobs[i] for i in group])

    def _append(self, jobs: list[Job]) -> None:
        sources = [job.source for job in jobs]
        if isinstance(self.caches, DeviceCaches):
            self.caches.add(sources)
        else:
            lexicon = self.sessions.lexicon
            lists = [lexicon.candidates(job.source, job.constraints.prefix) for job in jobs] if lexicon else []
            self.caches.add(*self.sessions.encode(sources), lists)
        rules, traces = [job.rules for job in jobs], [job.trace() for job in jobs]
        self.state.add(rules, traces, independent=self.turns.independent)
        self.jobs += jobs

    def step(self, undisturbed: Callable[[], bool]) -> None:
        """One decoder step, one turn of search; sentences that are done or cancelled leave. With greedy search several
        steps, as long as `undisturbed`."""
        beam = self.mode.rows
        answer = self.caches.run(self.turns.inputs(self.state, self.jobs))
        if isinstance(self.caches, RowCaches | DeviceRows) and not any(job.watched for job in self.jobs):
            answer = run_ahead(self.caches, self.state, answer, undisturbed)
        if "attention" in answer:
            for trace, weights in zip(self.state.traces, answer["attention"], strict=True):
                if trace is not None:
                    trace.look(weights)
        turn = self.turns.turn(self.state, self.jobs, answer)
        done = set(turn.done.tolist())
        for index, job in enumerate(self.jobs):
            if job.progress is not None:
                tell(job, self.state, index, ended=index in done)
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
            self.caches.reorder(turn_parents)

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
