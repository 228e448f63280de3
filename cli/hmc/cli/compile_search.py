"""`hmc compile --max-bleu-drop, --max-latency-ms`: levels are compiled, measured and thrown away until one fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from hmc.artifact.bundle import ON_CUDA, Level, Manifest, Precision
from hmc.artifact.bundle_files import replace_bundle
from hmc.artifact.errors import DeviceUnavailableError, InvalidRequestError
from hmc.benchmark.budget import Candidate, Limits, Search, search
from hmc.benchmark.budget_report import doubt, refusal, table, to_dict
from hmc.benchmark.candidates import Meter, Workload
from hmc.benchmark.levels import reference_level
from hmc.benchmark.machine import this_machine
from hmc.benchmark.text import TestSet
from hmc.compiler.bundle_builder import BundleBuilder, LevelRequest
from hmc.compiler.bundle_writer import forms
from hmc.compiler.layouts import head_scores
from hmc.compiler.shortlist_text import ShortlistText
from hmc.serving.sessions import cuda_available

Progress = Callable[[str], None]


@dataclass(frozen=True)
class BudgetPlan:
    """What to search for, and in what."""

    request: LevelRequest
    """The level with all heads; those of others are chosen by what it says."""
    out: Path
    precisions: Sequence[Precision]
    calibration: Sequence[str]
    """Source sentences for int8."""
    test_set: TestSet
    beam: int
    limits: Limits
    shortlist: ShortlistText | None = None
    """Searches the twins with shortlists too, each on its own."""
    inputs: Sequence[Path] = ()
    """What else is read: files that `out` may not take along when it is replaced."""

    @property
    def workload(self) -> Workload:
        """What is timed."""
        decides = self.limits.max_latency_ms is not None
        return Workload.of(self.test_set.sources, self.beam, decides=decides)


@dataclass
class BudgetRun:
    """A plan carried out. What was tried stays in `searches`, also when nothing is found."""

    plan: BudgetPlan
    searches: dict[str, Search] = field(default_factory=dict)
    """By precision and, of twins with shortlists, `PRECISION-shortlist`."""
    devices: list[str] = field(default_factory=list)

    def run(self, progress: Progress) -> Manifest:
        """Writes a bundle of all heads and of the level found, at every precision; the first found is its default.

        Every precision, and its twin with shortlists, is searched on its own, against the same reference level; a twin
        may find what its precision does not, and the other way round. Raises InvalidRequestError, InvalidArtifactError,
        DeviceUnavailableError; `plan.out` is then as it was before.
        """
        plan = self.plan
        on_cuda = [precision for precision in plan.precisions if precision in ON_CUDA]
        if on_cuda and not cuda_available():
            raise DeviceUnavailableError(
                f"--precision {on_cuda[0]}: such levels run on CUDA, and there is none here to score and time them on; "
                "search at fp32 or int8, then compile the heads found with --target-heads"
            )
        checkpoint = plan.request.checkpoint
        with replace_bundle(plan.out, [checkpoint, *plan.inputs]) as folder:
            builder = BundleBuilder(
                [checkpoint], folder, calibration=plan.calibration, shortlist=plan.shortlist, progress=progress
            )
            head_scores(builder.checkpoint(checkpoint), "a search for a head budget", plan.request.rank_by)
            wanted = forms(plan.precisions, plan.shortlist)
            builder.prepare([(plan.request, *form) for form in wanted])
            meter = Meter(folder, plan.test_set, plan.workload, plan.limits.confidence, progress, self.devices)
            whole = [builder.add(plan.request, precision, listed=listed) for precision, listed in wanted]
            measured = _measure_whole(builder, meter, whole)
            for precision in plan.precisions:
                reasons = {}
                for form, level in zip(wanted, whole, strict=True):
                    if form[0] == precision:
                        done = self._search(builder, meter, form, measured[level.name])
                        self.searches[_name(*form)], reasons[_name(*form)] = done, refusal(done)
                if all(reasons.values()):
                    said = [f"{name}: {why}" if len(whole) > 1 else str(why) for name, why in reasons.items()]
                    raise InvalidRequestError("; ".join(said))
            return self._finish(builder, whole)

    def _search(
        self, builder: BundleBuilder, meter: Meter, form: tuple[Precision, bool], everything: Candidate
    ) -> Search:
        plan, (precision, listed) = self.plan, form

        def evaluate(heads: int) -> Candidate:
            if heads == everything.heads:
                return everything
            level = builder.add(replace(plan.request, target_heads=heads), precision, listed=listed)
            candidate = meter.measure(builder.manifest([level]), level)
            if not candidate.keeps(plan.limits):
                builder.discard(level.name)
            return candidate

        return search(everything.heads, evaluate, plan.limits)

    def _finish(self, builder: BundleBuilder, whole: Sequence[Level]) -> Manifest:
        kept_limits = [done for done in self.searches.values() if refusal(done) is None]
        found = [builder.levels[done.found.level] for done in kept_limits if done.found]
        kept = {level.name: level for level in (*whole, *found)}
        for candidate in (c for done in self.searches.values() for c in done.tried if c.level in kept):
            kept[candidate.level].quality = candidate.quality
        record = {form: to_dict(done, latency=False) for form, done in self.searches.items()}
        return builder.finish(list(kept.values()), found[0].name, head_search=record)

    def show(self, people: Console) -> None:
        """What was tried, as tables. Why nothing was found is told where something else was: else it is the error."""
        found = any(refusal(done) is None for done in self.searches.values())
        for done in self.searches.values():
            people.print(table(done))
            reason = refusal(done) if found else None
            if note := doubt(done) or (reason and f"nothing found. {reason}"):
                people.print(f"note: {note}\n", highlight=False, markup=False, soft_wrap=True)
        if self.searches:
            where = f"{self.plan.workload}; {this_machine(self.devices)}"
            people.print(f"p50: {where}", highlight=False, markup=False, soft_wrap=True)

    def to_dict(self) -> dict[str, Any]:
        """What was tried and how, as JSON-ready values."""
        return {
            "timed": str(self.plan.workload),
            "machine": str(this_machine(self.devices)),
            "precisions": {form: to_dict(done) for form, done in self.searches.items()},
        }


def _name(precision: Precision, listed: bool) -> str:
    return f"{precision}-shortlist" if listed else precision


def _measure_whole(builder: BundleBuilder, meter: Meter, levels: Sequence[Level]) -> dict[str, Candidate]:
    """Level name → measurement of the levels with all heads; the reference level is measured first."""
    manifest = builder.manifest(levels)
    reference = reference_level(manifest)
    ordered = sorted(levels, key=lambda level: level.name != reference)
    return {level.name: meter.measure(manifest, level) for level in ordered}
