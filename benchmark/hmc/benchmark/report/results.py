"""The results of a benchmark as data and as JSON, and the contract that states how they were measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from hmc.artifact.bundle.manifest import Latency, Level, Quality
from hmc.artifact.bundle.order import unfinished
from hmc.artifact.errors import InvalidRequestError, field_problems
from hmc.artifact.git_lfs import why
from hmc.artifact.precisions import precision_named
from hmc.artifact.significance import RESAMPLES, TRIALS
from hmc.benchmark.load.results import LoadCurve
from hmc.benchmark.measure.latency import TURNS, FirstToken, LatencyResult, RequestSize
from hmc.benchmark.measure.machine import Machine
from hmc.benchmark.measure.memory import MemoryResult
from hmc.benchmark.measure.validity import FEWEST_ROUNDS, requests_needed
from hmc.engine.runtime.threads import described

SCHEMA_VERSION = 2
ALIKE = 0.25
"""The part by which the second fastest round of requests is slower than the fastest, at most, on a steady machine."""


@dataclass(frozen=True)
class BundleInfo:
    """The bundle that was measured."""

    path: str
    version: str
    source_language: str
    target_language: str


@dataclass(frozen=True)
class Sentence:
    """A sentence of the test set."""

    source: str
    reference: str | None
    tokens: int | None
    """Source tokens, end of sentence included. None: it was not translated."""


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
    peers: tuple[str, ...] = ()
    load_ms: float | None = None
    """The objective of the load curves."""
    tuned: bool = False
    """Whether levels on the CPU ran at their fastest division of the cores, as peers do."""


class Measured:
    """The measurements of a level or of another engine."""

    quality: tuple[Quality, ...]
    latency: tuple[LatencyResult, ...]
    recorded: Quality | None

    def quality_at(self, beam: int) -> Quality | None:
        """The quality at a beam size; None if it was not measured."""
        return next((quality for quality in self.quality if quality.beam == beam), None)

    def deciding(self, beam: int) -> Quality | None:
        """The quality that decides which level is recommended: what is recorded, else what was measured."""
        return self.recorded or self.quality_at(beam)

    def latency_at(self, setting: RequestSize) -> LatencyResult:
        """The latency at a setting. Raises StopIteration if it was not measured."""
        return next(r for r in self.latency if (r.batch, r.beam) == (setting.batch, setting.beam))


@dataclass(frozen=True)
class LevelReport(Measured):
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
    ter: float | None = None
    """Translation edit rate at the headline beam; lower is better."""
    first_token: FirstToken | None = None
    """At the headline beam."""
    head_layout: dict[str, list[list[int]]] = field(default_factory=dict)
    """Kind → for each layer, the numbers of the open heads."""
    translations: tuple[str, ...] = ()
    """Of the whole test set, at the headline beam. Empty where quality was not measured."""
    settings: dict[str, str] = field(default_factory=dict)
    """As of a peer, where levels were tuned as peers are; else empty."""
    recorded: Quality | None = None
    """Scores that the bundle has, at the headline beam and on more sentences than were measured here. So they decide.
    None: there are none, or not of every level."""


@dataclass(frozen=True)
class PeerReport(Measured):
    """All measurements of another engine with the weights of the full model."""

    name: str
    version: str
    settings: dict[str, str]
    """Batch and beam, as `RequestSize` writes them → the setting that was fastest there."""
    quality: tuple[Quality, ...]
    """Compared with the same reference level as all levels."""
    latency: tuple[LatencyResult, ...]
    ter: float | None
    same: float
    """Share of the sentences that it translates as the reference level does, letter for letter."""
    translations: tuple[str, ...]
    """As of a level."""
    recorded: Quality | None = None
    """Scores on the text of the levels' recorded ones. None: there are none."""


@dataclass(frozen=True)
class Report:
    """The results of a benchmark."""

    contract: str
    bundle: BundleInfo
    conditions: Conditions
    machine: Machine
    levels: tuple[LevelReport, ...]
    peers: tuple[PeerReport, ...] = ()
    load: tuple[LoadCurve, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    """The test set, in its order."""
    heads: int = 0
    """Heads of each layer in the full model."""
    began: str = ""
    """When the measurement began, in ISO 8601."""
    commit: str | None = None
    """Commit of the checkout that measured, with `+` if files differed from it. None: it was no checkout."""
    schema_version: int = SCHEMA_VERSION

    @property
    def systems(self) -> tuple[LevelReport | PeerReport, ...]:
        """The levels, then the peers."""
        return (*self.levels, *self.peers)

    def to_dict(self) -> dict[str, Any]:
        """The report as values for JSON."""
        tree: dict[str, Any] = asdict(self)
        for system, data in zip(self.systems, (*tree["levels"], *tree["peers"]), strict=True):
            data["quality"] = [quality.model_dump(mode="json") for quality in system.quality]
            data["recorded"] = system.recorded and system.recorded.model_dump(mode="json")
        return tree

    def to_json(self) -> str:
        """The report as JSON with a final newline: indented, but each list of numbers on one line."""
        return json_text(self.to_dict())

    @classmethod
    def read(cls, path: Path) -> Report:
        """Reads what `to_json` wrote. Raises InvalidRequestError for another file, and for one of another schema."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"{path}: cannot be read: {error}") from error
        try:
            schema = json.loads(text)["schema_version"]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidRequestError(f"{path} {why(path, 'is no report of `hmc bench -o FILE`')}") from error
        if schema != SCHEMA_VERSION:
            raise InvalidRequestError(
                f"{path}: has schema {schema}, and this version reads {SCHEMA_VERSION}: measure again with `hmc bench`"
            )
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise InvalidRequestError(f"{path}: {field_problems(error)[0]}; measure again with `hmc bench`") from error

    def described_levels(self) -> list[Level]:
        """The levels as a manifest would describe them with these measurements, for `hmc.artifact.bundle.order`."""
        beam = self.conditions.headline.beam
        return [
            Level(
                name=level.name, precision=precision_named(level.precision), head_layout=level.head_layout,
                parameters=level.parameters, bytes=level.bytes, source_checkpoint="", files={},
                quality=level.deciding(beam), latency=self.recorded_latency(level),
            )
            for level in self.levels
        ]  # fmt: skip

    def recorded_latency(self, level: LevelReport) -> Latency:
        """A level's latency at the headline setting, in the form that the manifest stores.

        Percentiles are over the requests. The fastest round of each request counts, because other work on the machine
        can only make it slower. It was steady if the second fastest round took about as long.
        """
        at = level.latency_at(self.conditions.headline)
        ordered = np.sort(np.asarray(at.samples_ms), axis=0)
        p50, p95, p99 = np.percentile(ordered[0], (50, 95, 99), method="inverted_cdf").tolist()
        steady = None
        if len(ordered) >= FEWEST_ROUNDS:
            steady = bool(ordered[1].sum() <= (1 + ALIKE) * ordered[0].sum())
        return Latency(
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            batch=at.batch,
            beam=at.beam,
            requests=at.requests,
            machine=str(self.machine),
            steady=steady,
        )


def json_text(tree: Any) -> str:
    """JSON with a final newline: indented, but each list of numbers or of texts is written compactly."""
    return _text(tree, 0) + "\n"


def _text(value: Any, depth: int) -> str:
    inner = "\n" + " " * (depth + 1)
    if isinstance(value, dict) and value:
        rows = (f"{json.dumps(str(key))}: {_text(item, depth + 1)}" for key, item in value.items())
        return "{" + inner + f",{inner}".join(rows) + "\n" + " " * depth + "}"
    if isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple | str) for item in value):
        return "[" + inner + f",{inner}".join(_text(item, depth + 1) for item in value) + "\n" + " " * depth + "]"
    return json.dumps(value, ensure_ascii=False)


def uncertain(report: Report) -> list[str]:
    """What the numbers of a report do not allow to say, a sentence each: unsteady rounds, outliers, a busy machine,
    levels that had more training than the reference level."""
    times: list[tuple[str, LatencyResult]] = []
    for system in report.systems:
        times += [(system.name, at) for at in system.latency]
    doubts = list[str]()
    for size in dict.fromkeys(RequestSize(at.batch, at.beam) for _, at in times):
        doubts += _unsteady(size, [(name, at) for name, at in times if (at.batch, at.beam) == (size.batch, size.beam)])
    if report.conditions.rounds < FEWEST_ROUNDS:
        doubts.append(
            f"There are no intervals of times, and steadiness and outliers were not checked: that needs --rounds "
            f"{FEWEST_ROUNDS} or more."
        )
    if report.machine.is_busy:
        doubts.append(
            f"The machine was busy with something else: load average {report.machine.load_average:.1f} at the start."
        )
    if warning := unfinished(report.described_levels()):
        doubts.append(warning)
    for curve in report.load:
        doubts += [f"{curve.name} under load: {note}" for note in curve.notes]
    return doubts


def busy(report: Report) -> str | None:
    """A sentence on a machine that was not steady: by how much the times of one system varied. None: it was steady."""
    times = chain.from_iterable(system.latency for system in report.systems)
    unsteady = [at.steadiness for at in times if at.steadiness.steady is False]
    spreads = [one.spread for one in unsteady if one.spread is not None]
    if not spreads:
        return None
    return (
        f"This machine was busy: the times of a level varied by {min(spreads):.0%} to {max(spreads):.0%} from round to "
        "round, so small differences of speed are chance."
    )


def _unsteady(size: RequestSize, times: list[tuple[str, LatencyResult]]) -> list[str]:
    """A sentence on the unsteady systems at a size of request, and one on outliers."""
    doubts = list[str]()
    if unsteady := [(name, at.steadiness) for name, at in times if at.steadiness.steady is False]:
        listed = ", ".join(f"{name} ({seen.drift:+.0%}, {seen.spread:.0%})" for name, seen in unsteady)
        doubts.append(
            f"Not steady at {size}: {listed}. In brackets: how much longer the later rounds took, and by how much of "
            "the median round the slowest and the fastest differ."
        )
    if outlying := [(name, at) for name, at in times if at.steadiness.outliers]:
        listed = ", ".join(f"{at.steadiness.outliers} of {at.requests} at {name}" for name, at in outlying)
        worst = max(at.steadiness.worst or 0.0 for _, at in outlying)
        doubts.append(
            f"Outliers at {size}: {listed} took more than twice as long as the same request usually did, the worst "
            f"{worst:.1f} times. They count."
        )
    return doubts


def contract(conditions: Conditions, devices: dict[str, str]) -> str:
    """States what is timed and what is not. It is printed before any number."""
    c = conditions
    threads = described(c.threads)
    if c.tuned:
        threads = "on the CPU the division of the cores that was fastest in a short trial"
    elif c.workers > 1:
        threads = f"{c.workers} workers of {max(c.threads, 1)} thread{'s' if c.threads > 1 else ''}"
    sizes = f"batch {_listed(c.batches)} and beam {_listed(c.beams)}"
    lines = [
        f"Timed: one call that takes texts and returns texts, tokenisation and beam search included, at {sizes}.",
        "Not timed: loading, warm-up, gRPC, and the first request of every level at each setting.",
        f"Rounds: {c.rounds}. All levels are loaded in one process. In a round each translates the same "
        f"{_timed(c)}, one request at a time, in {TURNS} turns. Each turn starts with another level.",
        f"Percentiles: over all requests of all rounds, nearest rank; p90 needs {requests_needed(90)} requests, p95 "
        f"{requests_needed(95)} and p99 {requests_needed(99)}, and a dash stands where there were fewer. Intervals: "
        f"95 %, over the rounds, where there are {FEWEST_ROUNDS} or more.",
        f"Ratio: a level's time divided by {c.latency_reference}'s, median over the rounds; below 1 is faster.",
        "Rates: of the timed calls alone; tokens are target tokens, end of sentence included. A level that writes "
        "longer translations needs more time for a request, so compare tokens/s too.",
        f"Devices: {', '.join(f'{level} on {device}' for level, device in devices.items())}; {threads} for each level.",
    ]
    if c.left_out:
        lines.append(f"Left out, because they do not run on this device: {_listed(c.left_out)}.")
    if c.quality_reference is not None:
        lines.append(
            f"Quality: sacreBLEU BLEU and chrF on {c.sentences} sentences of {c.test_set}; text without "
            "spaces is counted by characters. ΔBLEU is against "
            f"{c.quality_reference}, with a 95 % interval by paired bootstrap (Koehn 2004, {RESAMPLES} resamples) and "
            f"the two-sided p-value of sacreBLEU's paired approximate randomisation (--paired-ar, {TRIALS} trials)."
        )
    else:
        lines.append("Quality: not measured, no references were given.")
    if c.memory:
        lines.append(
            "Memory: peak resident memory of a new process that loads one level and translates, interpreter included. "
            "Cold start: from the start of that process to its first translation, files in the system's cache."
        )
    if c.peers:
        lines.append(
            f"Peers: {_listed(c.peers)}, with the weights of {c.latency_reference}, each in a process of its own on "
            "the CPU, timed there from text to text. They take their turns with the levels. For each size of request "
            "an engine runs at the setting of precision and threads that was fastest in a short trial; its quality is "
            f"that at batch {max(c.batches)}."
        )
    if c.load_ms is not None:
        lines.append(
            f"Load: each level alone on a server in a process of its own; calls of one text arrive at random times, "
            "whether or not earlier ones are answered; latency counts from when a call was due. Searched is the "
            f"highest rate at which 99 % of the calls are answered within {c.load_ms:g} ms."
        )
    return "\n".join(lines)


def _timed(conditions: Conditions) -> str:
    counts = conditions.timed_at_batch
    if len(set(counts)) == 1:
        return f"{counts[0]} sentence{'s' if counts[0] > 1 else ''}"
    sizes = zip(counts, conditions.batches, strict=True)
    return f"sentences ({', '.join(f'{count} at batch {batch}' for count, batch in sizes)})"


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(str, values))
