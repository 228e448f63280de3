"""What one decoder step asks of CUDA, and how long Python takes for it.

A step is everything from the end of one run of the decoder to the end of the next: reading the outputs, the search, the
scheduler, writing the inputs, and the run. Steps in which sentences join or leave are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np

from experiments.support.counting.answers import Answers, Lengths
from experiments.support.counting.device_search import SearchAnswers
from experiments.support.counting.libraries import StandIn
from experiments.support.counting.operations import Sums, by_kind
from experiments.support.counting.watching import Run, Watch
from experiments.support.counting.workload import queue_at_once, random_source
from hmc.artifact.model.architecture import Architecture
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.translator import Translator

SOURCE, TARGET = 24, 40
GIVEN = 5
"""A token that a translation may begin with."""
BEFORE = 3
"""Batches before the one that is counted."""
SETTLED = 4
"""First steps of a batch that are left out."""


def answering(watch: Watch, arch: Architecture, natural: Sequence[int] | None = None) -> tuple[Answers, SearchAnswers]:
    """Makes listeners that answer the only ones of `watch`, and returns them. natural: see `Lengths`."""
    lengths = Lengths(natural)
    answers = Answers(arch, lengths), SearchAnswers(arch, lengths)
    watch.listeners[:] = answers
    return answers


@dataclass
class StepTimes:
    """Listeners that time steps, without the time of the answers between them: `before` is the first, `after` the last
    of all listeners."""

    python_s: list[list[float]] = field(default_factory=list)
    """Of each step, without the run itself; a list for each batch."""
    run_s: list[float] = field(default_factory=list)
    _left: float | None = None

    def begin_batch(self) -> None:
        """The next run begins a batch."""
        self.python_s.append([])
        self._left = None

    def before(self, run: Run) -> None:
        """A run has ended."""
        if run.role == "step" and self._left is not None:
            self.python_s[-1].append(run.began - self._left)
            self.run_s.append(run.ended - run.began)

    def after(self, run: Run) -> None:
        """The run was answered: the time of the next step begins. A step with a call of the encoder does not count."""
        self._left = time.perf_counter() if run.role == "step" else None


@dataclass
class StepOperations:
    """A listener that records what each run asks of CUDA, from the end of the run before it on."""

    stand_in: StandIn
    steps: list[Sums] = field(default_factory=list)
    encodes: list[Sums] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    """Operations of the latest step by kind."""

    def __call__(self, run: Run) -> None:
        """After a run."""
        found = self.stand_in.take()
        if run.role == "encoder":
            self.encodes.append(Sums.of(found))
        elif run.role == "step":
            self.steps.append(Sums.of(found))
            self.kinds = by_kind(found)
        self.stand_in.record(True)


@dataclass(frozen=True)
class Setting:
    """A full batch whose steps are measured."""

    batch: int
    """Sentences."""
    beam: int
    prefix: bool = False
    """Whether each translation begins with a given token: its search then has to see every token."""

    @classmethod
    def parse(cls, text: str) -> Setting:
        """`32x4`, or `32x4+prefix`. Raises ValueError for anything else."""
        size, _, prefix = text.partition("+")
        if prefix not in ("", "prefix"):
            raise ValueError(f"setting {text!r}: write BATCHxBEAM or BATCHxBEAM+prefix")
        batch, beam = map(int, size.split("x"))
        return cls(batch, beam, prefix == "prefix")

    def __str__(self) -> str:
        return f"{self.batch}x{self.beam}" + ("+prefix" if self.prefix else "")

    @property
    def rows(self) -> int:
        """Rows of the whole batch."""
        return self.batch * self.beam

    def translate(self, translator: Translator, tokens: int, seed: int = 2) -> None:
        """Translates its sentences, which start together, into so many tokens each."""
        rng, arch = np.random.default_rng(seed), translator.manifest.architecture
        sources = [random_source(arch, SOURCE, rng) for _ in range(self.batch)]
        options = DecodeOptions(beam_size=self.beam, min_length=tokens, max_length=tokens)
        given = Constraints(prefix=(GIVEN,)) if self.prefix else None
        for future in queue_at_once(translator, sources, options, given):
            future.result()


def measure_steps(
    watch: Watch, stand_in: StandIn, translator: Translator, setting: Setting, *, rounds: int = 8
) -> dict[str, Any]:
    """Counts and times the steps of a batch, each sentence of SOURCE and TARGET tokens.

    Returns sums of a step: of the middle one, the mean, and the most of any step; microseconds of Python and of the
    runtime for a step (medians and means over all steps); and sums of each call of the encoder.
    """
    answers = answering(watch, translator.manifest.architecture)

    def translate() -> None:
        """Every batch gets the same answers, so that its caches grow as those of the batch before, to geometries whose
        graphs are captured."""
        for each in answers:
            each.restart()
        setting.translate(translator, TARGET)

    for _ in range(BEFORE):
        translate()
    operations, times = StepOperations(stand_in), StepTimes()
    watch.listeners[:] = [*answers, operations]
    stand_in.record(True)
    translate()
    stand_in.record(False)
    watch.listeners[:] = [times.before, *answers, times.after]
    for _ in range(rounds):
        times.begin_batch()
        translate()
    watch.listeners[:] = answers
    steps = operations.steps[SETTLED:-1]
    python = 1e6 * np.concatenate([each[SETTLED:-1] for each in times.python_s])
    return {
        "steps": len(steps), "middle": summary(steps, np.median), "mean": summary(steps, np.mean),
        "most": summary(steps, np.max), "kinds": operations.kinds,
        "encoder": [asdict(sums) for sums in operations.encodes],
        "python_us": {"median": float(np.median(python)), "mean": float(python.mean())},
        "run_us": 1e6 * float(np.median(times.run_s)),
    }  # fmt: skip


def summary(steps: Sequence[Sums], function: Callable[[list[int]], Any]) -> dict[str, float]:
    """Field of `Sums` → a function of it over all steps. `bytes` are those that crossed the bus both ways."""
    fields = {f.name: [getattr(step, f.name) for step in steps] for f in dataclass_fields(Sums)}
    fields["bytes"] = [step.bytes_across for step in steps]
    return {name: float(function(values)) for name, values in fields.items()}
