"""Measuring the candidates of a search for a head budget: BLEU against the reference level, and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import bleu, bleu_statistics, default_seed, difference
from hmc.benchmark.budget.search import Candidate
from hmc.benchmark.measure.latency import Setting, measure_latency
from hmc.benchmark.measure.quality import Output, Progress, score, silent, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.serving import Translator
from hmc.serving.requests.options import MAX_BEAM
from hmc.serving.runtime.threads import described

ROUNDS, TIMED_SENTENCES = 3, 64


@dataclass(frozen=True)
class Workload:
    """The requests that are timed: one sentence each, at the beam size that is scored. Raises InvalidRequestError."""

    sentences: tuple[str, ...]
    beam: int
    rounds: int

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= MAX_BEAM:
            raise InvalidRequestError(f"--beam {self.beam}: choose 1 to {MAX_BEAM}")

    @classmethod
    def of(cls, sources: Sequence[str], beam: int, *, decides: bool) -> Workload:
        """The first sentences that are not blank. decides: the latency is a limit, so it is measured more often."""
        timed = tuple(source for source in sources if source.strip())[:TIMED_SENTENCES]
        return cls(timed, beam, ROUNDS if decides else 1)

    def __str__(self) -> str:
        return (
            f"median of {self.rounds} × {len(self.sentences)} requests, one sentence each, beam {self.beam}, after "
            f"warm-up, {described(0)}; loading and gRPC are not timed"
        )


@dataclass
class Meter:
    """Measures levels on one test set. All levels are compared with the first one that is measured."""

    bundle: Path
    test_set: TestSet
    workload: Workload
    confidence: float
    progress: Progress = silent
    devices: list[str] = field(default_factory=list)
    """Device of each level that was measured."""
    reference: Output | None = field(default=None, init=False)

    def measure(self, manifest: Manifest, level: Level) -> Candidate:
        """Translates the test set, then times the workload. No other level is loaded meanwhile.

        manifest: describes `level` in the folder `bundle`. Raises DeviceUnavailableError, InvalidRequestError.
        """
        beam = self.workload.beam
        # Most candidates are deleted after the search, so their packed weights are not kept in the cache.
        with Translator(self.bundle, level.name, manifest=manifest, cache="none") as translator:
            self.devices.append(translator.device)
            self.progress(f"{level.name}: translating {len(self.test_set.sources)} sentences at beam {beam}")
            output = translate_all(translator, level.name, self.test_set.sources, beam)
            self.progress(f"{level.name}: timing")
            translator.warm_up()
            [timed] = measure_latency(
                {level.name: translator},
                self.workload.sentences,
                [Setting(1, beam)],
                rounds=self.workload.rounds,
                reference=level.name,
            )
        if self.reference is None:
            self.reference = output
        return Candidate(
            level.name,
            level.heads,
            score(output, self.reference, self.test_set, beam),
            self._loss_at_most(output, self.reference),
            timed.p50_ms,
            level.precision,
            bool(level.shortlist),
        )

    def _loss_at_most(self, output: Output, reference: Output) -> float:
        references = self.test_set.references or ()
        system, baseline = (bleu_statistics(one.hypotheses, references) for one in (output, reference))
        compared = difference(system, baseline, bleu, seed=default_seed(), confidence=self.confidence)
        return -compared.value if self.confidence == 0 else -compared.low
