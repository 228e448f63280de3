"""The result of a benchmark as a tree of plain data, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from hmc.artifact.bundle import Latency, Quality
from hmc.benchmark.latency import LatencyResult, Setting
from hmc.benchmark.machine import Machine
from hmc.benchmark.memory import MemoryResult
from hmc.serving.threads import described

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BundleInfo:
    """What was measured."""

    path: str
    version: str
    source_language: str
    target_language: str


@dataclass(frozen=True)
class Conditions:
    """How it was measured: what the contract puts into words."""

    test_set: str
    sentences: int
    """Sentences scored."""
    timed_sentences: int
    """Sentences of a round of latency, at the batch where they are most."""
    timed_at_batch: tuple[int, ...]
    """The same at each of `batches`: what fills no whole request is left out."""
    rounds: int
    batches: tuple[int, ...]
    beams: tuple[int, ...]
    headline: Setting
    """The setting that stands for a level in plots and in the manifest."""
    threads: int
    """Of each level's runtime; 0: one per physical core that the process may use."""
    quality_reference: str | None
    """Level that BLEU is compared with; None without references."""
    latency_reference: str
    """Level that times are compared with."""
    memory: bool
    left_out: tuple[str, ...] = ()
    """Levels that do not run on the device asked for."""
    workers: int = 1
    """Batches that a level runs at the same time, each on `threads` threads."""


@dataclass(frozen=True)
class LevelReport:
    """Everything measured of one level."""

    name: str
    heads: int
    precision: str
    parameters: int
    bytes: int
    """On disk, shared weights counted."""
    device: str
    quality: tuple[Quality, ...]
    """One a beam; empty without references."""
    latency: tuple[LatencyResult, ...]
    """One a setting."""
    memory: MemoryResult | None = None

    def quality_at(self, beam: int) -> Quality | None:
        """The quality at `beam`, if it was measured."""
        return next((quality for quality in self.quality if quality.beam == beam), None)

    def latency_at(self, setting: Setting) -> LatencyResult:
        """The latency at `setting`; raises StopIteration if it was not measured."""
        return next(r for r in self.latency if (r.batch, r.beam) == (setting.batch, setting.beam))


@dataclass(frozen=True)
class Report:
    """A whole benchmark."""

    contract: str
    bundle: BundleInfo
    conditions: Conditions
    machine: Machine
    levels: tuple[LevelReport, ...]
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        tree: dict[str, Any] = asdict(self)
        for level, data in zip(self.levels, tree["levels"], strict=True):
            data["quality"] = [quality.model_dump(mode="json") for quality in level.quality]
        return tree

    def to_json(self) -> str:
        """Indented, with a newline at the end."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def recorded_latency(self, level: LevelReport) -> Latency:
        """A level's latency at the headline setting, as the manifest keeps it."""
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
    """What is timed and what is not, said before any number."""
    c = conditions
    threads = described(c.threads)
    if c.workers > 1:
        threads = f"{c.workers} workers of {max(c.threads, 1)} thread{'s' if c.threads > 1 else ''}"
    sizes = f"batch {_listed(c.batches)} and beam {_listed(c.beams)}"
    lines = [
        f"Timed: one call that takes texts and returns texts, tokenisation and beam search included, at {sizes}.",
        "Not timed: loading, warm-up, gRPC. Before each setting every level translates one request outside the count.",
        f"Rounds: {c.rounds}. All levels are loaded in one process. In a round each translates the same "
        f"{_timed(c)}, request after request, one request at a time; who goes first rotates.",
        "Percentiles: over all requests of all rounds, nearest rank; of fewer than 100 requests p99 is the slowest.",
        f"Ratio: median over the rounds of a level's time over that of {c.latency_reference}; below 1 is faster.",
        "Rates: over the timed calls alone; tokens are target tokens, end of sentence included. A level that writes "
        "longer translations takes longer for a request: compare tokens/s too.",
        f"Devices: {', '.join(f'{level} on {device}' for level, device in devices.items())}; {threads} for each level.",
    ]
    if c.left_out:
        lines.append(f"Left out, because they do not run on this device: {_listed(c.left_out)}.")
    if c.quality_reference is not None:
        lines.append(
            f"Quality: sacreBLEU BLEU and chrF on {c.sentences} sentences of {c.test_set}. ΔBLEU is against "
            f"{c.quality_reference}, with its 95 % interval and two-sided p-value by paired bootstrap resampling "
            "(Koehn 2004, 1000 resamples)."
        )
    else:
        lines.append("Quality: not measured, no references were given.")
    if c.memory:
        lines.append(
            "Memory: most resident memory of a fresh process that loads one level and translates, interpreter included."
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
