"""Searching for a head budget: levels are compiled and measured, and the one that keeps the limits stays.

This is what `hmc compile --max-bleu-drop` and `--max-latency-ms` run. What is measured is BLEU against the reference
level, and latency. Where the latency is a limit, every level is timed in turns with the first one, and judged by its
ratio to it and by the time of the first level over all rounds: how fast the machine was at one moment does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hmc.artifact.bundle.manifest import Level, Manifest, Quality
from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.artifact.model.heads import fewest_that_see
from hmc.artifact.precisions import Precision
from hmc.artifact.significance import CONFIDENCE, bleu, bleu_statistics, default_seed, difference
from hmc.benchmark.budget.compile import CompilePlan
from hmc.benchmark.budget.report import refusal, to_dict
from hmc.benchmark.budget.search import Candidate, Limits, Search, search
from hmc.benchmark.measure.latency import RequestSize, measure_latency, median_of
from hmc.benchmark.measure.levels import reference_level
from hmc.benchmark.measure.machine import Machine, this_machine
from hmc.benchmark.measure.quality import Output, Progress, score, silent, translate_all
from hmc.benchmark.measure.text import TestSet
from hmc.benchmark.measure.validity import Interval, interval
from hmc.compiler.bundle.builder import BundleBuilder
from hmc.compiler.bundle.writer import forms
from hmc.compiler.weights import head_scores
from hmc.engine.requests.options import MAX_BEAM
from hmc.engine.runtime.threads import described
from hmc.serving import Translator

ROUNDS = 6
TIMED_SENTENCES = 64
REPEATS = 3
"""A level is timed in up to so many times `ROUNDS` rounds, as long as they disagree about the limit."""


@dataclass(frozen=True)
class Workload:
    """The requests that are timed: one sentence each, at the beam size that is scored. Raises InvalidRequestError."""

    sentences: tuple[str, ...]
    beam: int
    rounds: int

    def __post_init__(self) -> None:
        if not 1 <= self.beam <= MAX_BEAM:
            raise InvalidRequestError(f"beam {self.beam}: choose 1 to {MAX_BEAM}")

    @classmethod
    def from_sources(cls, sources: Sequence[str], beam: int, *, decides: bool) -> Workload:
        """The first sentences that are not blank. decides: the latency is a limit, so it is measured more often."""
        timed = tuple(source for source in sources if source.strip())[:TIMED_SENTENCES]
        return cls(timed, beam, ROUNDS if decides else 1)

    def __str__(self) -> str:
        if self.rounds > 1:
            return (
                f"{len(self.sentences)} requests, one sentence each, beam {self.beam}, after warm-up, {described(0)}; "
                f"{self.rounds} rounds or more in turns with the first level: the time of that one (of each request "
                "the fastest round) times the ratio of the same rounds; loading and gRPC are not timed"
            )
        return (
            f"median of {self.rounds} × {len(self.sentences)} requests, one sentence each, beam {self.beam}, after "
            f"warm-up, {described(0)}; loading and gRPC are not timed"
        )


@dataclass
class LevelMeter:
    """Measures levels on one test set. All levels are compared with the first one that is measured."""

    bundle: Path
    test_set: TestSet
    workload: Workload
    limits: Limits
    progress: Progress = silent
    devices: list[str] = field(default_factory=list)
    """Device of each level that was measured."""
    reference: Output | None = field(default=None, init=False)
    first_rounds: list[tuple[float, ...]] = field(default_factory=list, init=False)
    """`[R, N]`: milliseconds of each request of the first level in all rounds so far. Empty if latency is no limit."""
    _first: tuple[Manifest, Level] | None = field(default=None, init=False)
    _ratios: dict[str, list[float]] = field(default_factory=dict, init=False)
    """Level → its time in each of its rounds, over the first level's in the same round."""

    def measure(self, manifest: Manifest, level: Level) -> Candidate:
        """Translates the test set, then times the workload. Only the first level is loaded meanwhile, and only where
        the latency is a limit.

        manifest: describes `level` in the folder `bundle`. Raises DeviceUnavailableError, InvalidRequestError.
        """
        beam = self.workload.beam
        with ExitStack() as stack:
            # Most candidates are deleted after the search, so their packed weights are not kept in the cache.
            translator = stack.enter_context(Translator(self.bundle, level.name, manifest=manifest, cache="none"))
            self.devices.append(translator.device)
            self.progress(f"{level.name}: translating {len(self.test_set.sources)} sentences at beam {beam}")
            output = translate_all(translator, level.name, self.test_set.sources, beam)
            self.progress(f"{level.name}: timing")
            timed = {level.name: translator}
            if self._first and self.limits.max_latency_ms is not None:
                described, first = self._first
                opened = Translator(self.bundle, first.name, manifest=described, cache="none")
                timed = {first.name: stack.enter_context(opened), level.name: translator}
            for measured in timed.values():
                measured.warm_up()
            if self.reference is None:
                self.reference = output
                self._first = (manifest, level)
            quality = score(output, self.reference, self.test_set, beam)
            candidate = Candidate(
                level.name,
                level.heads,
                quality,
                self._loss_at_most(quality, output, self.reference),
                self._time(timed, level.name),
                level.precision,
                bool(level.shortlist),
            )
            candidate = self.judged(candidate)
            for _ in range(REPEATS - 1):
                if candidate.latency_known(self.limits) or not candidate.keeps_drop(self.limits):
                    break
                self.progress(f"{level.name}: timing again, because the rounds disagree")
                self._time(timed, level.name)
                candidate = self.judged(candidate)
        return candidate

    def judged(self, candidate: Candidate) -> Candidate:
        """A measured candidate. Its time uses all rounds of the first level so far.

        Other work on the machine can only make a request slower. So the fastest round of each request of the first
        level counts. The second fastest round shows how certain it is.
        """
        if not self.first_rounds:
            return candidate
        fastest, second = np.sort(np.asarray(self.first_rounds), axis=0)[:2].tolist()
        ratios = self._ratios[candidate.level]
        ratio = median(ratios)
        around = interval(ratio, ratios) or Interval(ratio, ratio)
        within = Interval(median_of(fastest) * around.low, median_of(second) * around.high)
        return replace(candidate, p50_ms=median_of(fastest) * ratio, p50_interval=within)

    def _time(self, translators: Mapping[str, Translator], level: str) -> float:
        """Times one of the translators in turns with the others. The first translator runs the first level. Returns the
        median milliseconds, and keeps the rounds where the latency is a limit."""
        results = measure_latency(
            translators,
            self.workload.sentences,
            [RequestSize(1, self.workload.beam)],
            rounds=self.workload.rounds,
            reference=next(iter(translators)),
        )
        first = results[0]
        own = results[-1]
        if self.limits.max_latency_ms is not None:
            self.first_rounds += first.samples_ms
            pairs = zip(own.samples_ms, first.samples_ms, strict=True)
            self._ratios.setdefault(level, []).extend(sum(mine) / sum(its) for mine, its in pairs)
        return own.p50_ms

    def _loss_at_most(self, quality: Quality, output: Output, reference: Output) -> float:
        confidence = self.limits.confidence
        if confidence in (0, CONFIDENCE):  # the quality has it
            return -quality.bleu_delta if confidence == 0 else -quality.ci_low
        references = self.test_set.references or ()
        system, baseline = (bleu_statistics(one.hypotheses, references) for one in (output, reference))
        compared = difference(system, baseline, bleu, seed=default_seed(), confidence=confidence)
        return -compared.low


@dataclass
class BudgetSearch:
    """Searches a head budget for each precision of a plan.

    `searches` fills up during `run` and stays when `run` raises, so that the candidates measured can still be shown.
    Raises InvalidRequestError for a plan with several requests, or without a test set with enough sentences, and
    DeviceUnavailableError for a precision that this machine cannot run.
    """

    plan: CompilePlan
    """Its one request is for all heads; candidates copy it with fewer heads. Its test set has references."""
    limits: Limits
    searches: dict[str, Search] = field(default_factory=dict)
    """Finished searches by precision; those with shortlists by `PRECISION-shortlist`."""
    devices: list[str] = field(default_factory=list)
    """Devices that the candidates ran on."""
    _measured: dict[tuple[str, int], Candidate] = field(default_factory=dict, init=False)
    """(form, heads) → what was measured."""
    _before: Machine | None = field(default=None, init=False)
    """The machine when the search began, before it was busy with the search."""

    def __post_init__(self) -> None:
        if len(self.plan.requests) != 1:
            raise InvalidRequestError("a search for a head budget takes one checkpoint")
        self.limits.check_test_set(len(self._test_set.texts))
        if self.plan.not_scored:
            raise DeviceUnavailableError(
                f"precisions {self.plan.not_scored[0]}: such levels run on CUDA, and this machine has none to score "
                "and time them on; search at fp32 or int8, then compile the heads found with target_heads"
            )

    @property
    def _test_set(self) -> TestSet:
        if self.plan.test_set is None:
            raise InvalidRequestError("the levels of a search are scored and timed on a test set: give one")
        return self.plan.test_set

    @property
    def workload(self) -> Workload:
        """The requests that are timed."""
        decides = self.limits.max_latency_ms is not None
        return Workload.from_sources(self._test_set.sources, self.plan.beam, decides=decides)

    def run(self, progress: Progress = silent) -> Manifest:
        """Writes a bundle with the level of all heads and the level found, for every precision.

        Each precision, with and without shortlists, is searched on its own, against the same reference level. A
        precision that finds nothing keeps its level of all heads. The default level is the first one found.
        Raises InvalidRequestError, also if no precision finds anything, InvalidArtifactError and
        DeviceUnavailableError. `plan.out` is then as it was before.
        """
        plan = self.plan
        [request] = plan.requests
        checkpoint = request.checkpoint
        self._before = this_machine([])
        with BundleBuilder.open(
            plan.out,
            [checkpoint],
            inputs=plan.inputs,
            calibration=plan.calibration,
            shortlist=plan.shortlist,
            progress=progress,
        ) as builder:
            opened = builder.checkpoint(checkpoint)
            scores = head_scores(opened, "a search for a head budget", request.rank_by)
            least = fewest_that_see(scores, opened.layout)
            wanted = forms(plan.precisions, plan.shortlist)
            builder.prepare([(request, *form) for form in wanted])
            meter = LevelMeter(builder.folder, self._test_set, self.workload, self.limits, progress, self.devices)
            whole = [builder.add(request, precision, with_shortlist=short) for precision, short in wanted]
            measured = _measure_whole(builder, meter, whole)
            rounds = -1
            while rounds != len(meter.first_rounds):
                # Each level that is timed tells more of the first one, by which all are judged. So the search is gone
                # through again, until it times no further level.
                rounds = len(meter.first_rounds)
                for form, level in zip(wanted, whole, strict=True):
                    self.searches[_name(*form)] = self._search(builder, meter, form, measured[level.name], least)
            self._check_found()
            return self._finish(builder, whole)

    def _search(
        self,
        builder: BundleBuilder,
        meter: LevelMeter,
        form: tuple[Precision, bool],
        everything: Candidate,
        least: int,
    ) -> Search:
        """Searches one precision, with or without shortlists. everything: the measured level with all heads. least:
        the fewest heads of a level."""
        [request] = self.plan.requests
        precision, with_shortlist = form

        def add(heads: int) -> Level:
            return builder.add(replace(request, target_heads=heads), precision, with_shortlist=with_shortlist)

        def evaluate(heads: int) -> Candidate:
            if heads == everything.heads:
                return meter.judged(everything)
            key = _name(*form), heads
            if key not in self._measured:
                level = add(heads)
                self._measured[key] = meter.measure(builder.manifest([level]), level)
                if not self._measured[key].keeps(self.limits):
                    builder.discard(level.name)
            return meter.judged(self._measured[key])

        done = search(everything.heads, evaluate, self.limits, least)
        if done.found and done.found.level not in builder.levels:
            add(done.found.heads)  # it was too slow by what was known of the first level then
        return done

    def _check_found(self) -> None:
        """Raises InvalidRequestError, with the reason of each precision, if no search found anything."""
        reasons = {name: refusal(done) for name, done in self.searches.items()}
        if all(reasons.values()):
            listed = "; ".join(f"{name}: {why}" for name, why in reasons.items())
            raise InvalidRequestError(listed if len(reasons) > 1 else str(*reasons.values()))

    def _finish(self, builder: BundleBuilder, whole: Sequence[Level]) -> Manifest:
        """Leaves the levels of all heads and the levels found in the bundle, with their quality."""
        successful = [done for done in self.searches.values() if refusal(done) is None]
        levels = [builder.levels[done.found.level] for done in successful if done.found]
        kept = {level.name: level for level in (*whole, *levels)}
        for candidate in chain.from_iterable(done.tried for done in self.searches.values()):
            if candidate.level in kept:
                kept[candidate.level].quality = candidate.quality
        record = {form: to_dict(done, latency=False) for form, done in self.searches.items()}
        return builder.finish(list(kept.values()), levels[0].name, head_search=record)

    @property
    def timed(self) -> str:
        """Describes the timed requests, the machine, and the machine's other work."""
        busy = ""
        if self._before and self._before.is_busy and self.limits.max_latency_ms is not None:
            load = self._before.load_average
            busy = (
                f". It was busy with something else, load average {load:.1f} at the start: what is too slow may be "
                "fast enough when it is not"
            )
        return f"{self.workload}; {this_machine(self.devices)}{busy}"

    def to_dict(self) -> dict[str, Any]:
        """Every candidate and how it was measured, as values for JSON."""
        return {
            "timed": str(self.workload),
            "machine": str(this_machine(self.devices)),
            "precisions": {form: to_dict(done) for form, done in self.searches.items()},
        }


def _name(precision: Precision, with_shortlist: bool) -> str:
    return f"{precision}-shortlist" if with_shortlist else precision


def _measure_whole(builder: BundleBuilder, meter: LevelMeter, levels: Sequence[Level]) -> dict[str, Candidate]:
    """Measures the levels with all heads, the reference level first. Returns level name → candidate."""
    manifest = builder.manifest(levels)
    reference = reference_level(manifest)
    ordered = sorted(levels, key=lambda level: level.name != reference)
    return {level.name: meter.measure(manifest, level) for level in ordered}
