"""Measuring the levels that a search for a head budget tries: BLEU against the reference level, and latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hmc.artifact.bundle import Level, Manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.bootstrap import bleu_counts, paired_bootstrap
from hmc.benchmark.budget import Candidate
from hmc.benchmark.latency import Setting, measure_latency
from hmc.benchmark.quality import Output, Progress, score, silent, translate_all
from hmc.benchmark.text import TestSet
from hmc.serving import Translator
from hmc.serving.options import MAX_BEAM
from hmc.serving.threads import described

ROUNDS, TIMED_SENTENCES = 3, 64


@dataclass(frozen=True)
class Workload:
    """What is timed: one sentence a request, at the beam that is scored. Raises InvalidRequestError."""

    sentences: tuple[str, ...]
    beam: int
    rounds: int

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= MAX_BEAM:
            raise InvalidRequestError(f"--beam {self.beam}: choose 1 to {MAX_BEAM}")

    @classmethod
    def of(cls, sources: Sequence[str], beam: int, *, decides: bool) -> Workload:
        """The first sentences that are not blank. decides: timed more often, since the latency is a limit."""
        timed = tuple(source for source in sources if source.strip())[:TIMED_SENTENCES]
        return cls(timed, beam, ROUNDS if decides else 1)

    def __str__(self) -> str:
        return (
            f"median of {self.rounds} × {len(self.sentences)} requests, one sentence each, beam {self.beam}, after "
            f"warm-up, {described(0)}; loading and gRPC are not timed"
        )


@dataclass
class Meter:
    """Measures the levels of one folder on one test set. The first level measured is the reference of all others."""

    bundle: Path
    test_set: TestSet
    workload: Workload
    confidence: float
    progress: Progress = silent
    devices: list[str] = field(default_factory=list)
    """Where levels ran."""
    reference: Output | None = field(default=None, init=False)

    def measure(self, manifest: Manifest, level: Level) -> Candidate:
        """Translates the test set, then times the workload, with no other level loaded.

        manifest: describes the folder, and `level` in it. Raises DeviceUnavailableError, InvalidRequestError.
        """
        beam = self.workload.beam
        # Most candidates are thrown away: their packed weights are not worth keeping on this machine.
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
        counts, baseline = bleu_counts(output.hypotheses, references), bleu_counts(reference.hypotheses, references)
        compared = paired_bootstrap(counts, baseline, confidence=self.confidence)
        return -compared.delta if self.confidence == 0 else -compared.ci_low
