"""The results of a benchmark as data and as JSON, and the contract that states how they were measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.artifact.significance import RESAMPLES, TRIALS
from hmc.benchmark.measure.latency import LatencyResult, RequestSize
from hmc.benchmark.measure.machine import Machine
from hmc.benchmark.measure.memory import MemoryResult
from hmc.serving.runtime.threads import described

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BundleInfo:
    """The bundle that was measured."""

    path: str
    version: str
    source_language: str
    target_language: str


@dataclass(frozen=True)
class Conditions:
    """How it was measured. `contract` says this in words."""

    test_set: str
    sentences: int
    """Number of sentences scored."""
    timed_sentences: int
    """Number of sentences timed in a round; the largest of `timed_at_batch`."""
    timed_at_batch: tuple[int, ...]
    """The same for each of `batches`. Sentences that fill no whole request are left out."""
    rounds: int
    batches: tuple[int, ...]
    beams: tuple[int, ...]
    headline: RequestSize
    """The setting whose latency is plotted and recorded in the manifest."""
    threads: int
    """Threads of each worker. 0: one for each physical core that the process may use."""
    quality_reference: str | None
    """Level that BLEU is compared with, the same as `latency_reference`. None: there were no references."""
    latency_reference: str
    """Level that times are compared with."""
    memory: bool
    left_out: tuple[str, ...] = ()
    """Levels that were not measured, because they do not run on the device."""
    workers: int = 1
    """Batches that a level runs at the same time, each on `threads` threads."""


@dataclass(frozen=True)
class LevelReport:
    """All measurements of one level."""

    name: str
    heads: int
    precision: str
    parameters: int
    bytes: int
    """Size on disk, weights that it shares with other levels included."""
    device: str
    quality: tuple[Quality, ...]
    """One for each beam size; empty without references."""
    latency: tuple[LatencyResult, ...]
    """One for each setting."""
    memory: MemoryResult | None = None

    def quality_at(self, beam: int) -> Quality | None:
        """The quality at a beam size; None if it was not measured."""
        return next((quality for quality in self.quality if quality.beam == beam), None)

    def latency_at(self, setting: RequestSize) -> LatencyResult:
        """The latency at a setting. Raises StopIteration if it was not measured."""
        return next(r for r in self.latency if (r.batch, r.beam) == (setting.batch, setting.beam))


@dataclass(frozen=True)
class Report:
    """The results of a benchmark."""

    contract: str
    bundle: BundleInfo
    conditions: Conditions
    machine: Machine
    levels: tuple[LevelReport, ...]
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The report as values for JSON."""
        tree: dict[str, Any] = asdict(self)
        for level, data in zip(self.levels, tree["levels"], strict=True):
            data["quality"] = [quality.model_dump(mode="json") for quality in level.quality]
        return tree

    def to_json(self) -> str:
        """The report as indented JSON with a final newline."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def recorded_latency(self, level: LevelReport) -> Latency:
        """A level's latency at the headline setting, in the form that the manifest stores."""
        at = level.latency_at(self.conditions.headline)
        return Latency(
            p50_ms=at.p50_ms,
            p95_ms=at.p95_ms,
            p99_ms=at.p99_ms,
            batch=at.batch,
            beam=at.beam,
            requests=at.requests,
            machine=str(self.machine),
        )


def contract(conditions: Conditions, devices: dict[str, str]) -> str:
    """States what is timed and what is not. It is printed before any number."""
    c = conditions
    threads = described(c.threads)
    if c.workers > 1:
        threads = f"{c.workers} workers of {max(c.threads, 1)} thread{'s' if c.threads > 1 else ''}"
    sizes = f"batch {_listed(c.batches)} and beam {_listed(c.beams)}"
    lines = [
        f"Timed: one call that takes texts and returns texts, tokenisation and beam search included, at {sizes}.",
        "Not timed: loading, warm-up, gRPC, and the first request of every level at each setting.",
        f"Rounds: {c.rounds}. All levels are loaded in one process. In a round each translates the same "
        f"{_timed(c)}, one request at a time. Each round starts with another level.",
        "Percentiles: over all requests of all rounds, nearest rank; with fewer than 100 requests p99 is the slowest.",
        f"Ratio: a level's time divided by that of {c.latency_reference}, median over the rounds; below 1 is faster.",
        "Rates: of the timed calls alone; tokens are target tokens, end of sentence included. A level that writes "
        "longer translations needs more time for a request, so compare tokens/s too.",
        f"Devices: {', '.join(f'{level} on {device}' for level, device in devices.items())}; {threads} for each level.",
    ]
    if c.left_out:
        lines.append(f"Left out, because they do not run on this device: {_listed(c.left_out)}.")
    if c.quality_reference is not None:
        lines.append(
            f"Quality: sacreBLEU BLEU and chrF on {c.sentences} sentences of {c.test_set}. ΔBLEU is against "
            f"{c.quality_reference}, with a 95 % interval by paired bootstrap (Koehn 2004, {RESAMPLES} resamples) and "
            f"the two-sided p-value of sacreBLEU's paired approximate randomisation (--paired-ar, {TRIALS} trials)."
        )
    else:
        lines.append("Quality: not measured, no references were given.")
    if c.memory:
        lines.append(
            "Memory: peak resident memory of a new process that loads one level and translates, interpreter included."
        )
    return "\n".join(lines)


def _timed(conditions: Conditions) -> str:
    counts = conditions.timed_at_batch
    if len(set(counts)) == 1:
        return f"{counts[0]} sentence{'s' if counts[0] > 1 else ''}"
    each = zip(counts, conditions.batches, strict=True)
    return f"sentences ({', '.join(f'{count} at batch {batch}' for count, batch in each)})"


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
