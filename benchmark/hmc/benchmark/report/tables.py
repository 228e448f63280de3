"""A report as tables, which fit a terminal of 80 columns, and the advice that it gives."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hmc.artifact.bundle.manifest import Quality
from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.report.results import Conditions, LevelReport, Report

MEBIBYTE = 2**20
LOSS = 0.5
"""BLEU that a level may lose to be worth taking for its speed."""


def tables(report: Report) -> RenderableType:
    """All tables of a report: sizes, quality, latency, and the machine."""
    machine = report.machine
    software = [f"Python {machine.python}", *(f"{name} {version}" for name, version in machine.versions.items())]
    where = f"{machine}, {machine.os}, load average {machine.load_average:.1f} at the start"
    scores = [quality_table(report)] if report.conditions.quality_reference else []
    return Group(size_table(report), *scores, latency_table(report), f"{where}\n{', '.join(software)}")


def table_of(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table with columns for texts, then columns for numbers."""
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in texts:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def size_table(report: Report) -> Table:
    """A row for each level: heads, parameters, bytes on disk and in memory."""
    table = table_of("Levels", ("level", "precision"), ("heads", "parameters", "MiB on disk", "peak MiB"))
    for level in report.levels:
        peak = mebibytes(level.memory.peak_bytes) if level.memory else "–"
        size = (f"{level.parameters:,}", mebibytes(level.bytes), peak)
        table.add_row(level.name, level.precision, str(level.heads), *size)
    return table


def quality_table(report: Report) -> Table:
    """A row for each beam size and level: BLEU, its difference with interval and p-value, chrF."""
    conditions = report.conditions
    title = (
        f"Quality: {conditions.sentences} sentences of {conditions.test_set}, Δ against {conditions.quality_reference}"
    )
    table = table_of(title, ("beam", "level"), ("BLEU", "Δ [95 %]", "p", "chrF"))
    for beam in conditions.beams:
        for level in report.levels:
            quality = level.quality_at(beam)
            if quality is not None:
                differs = (delta(quality, level.name), p_value(quality, level.name))
                table.add_row(str(beam), level.name, f"{quality.bleu:.2f}", *differs, f"{quality.chrf:.2f}")
        table.add_section()
    return table


def latency_table(report: Report) -> Table:
    """A row for each setting and level: percentiles, rates, and the ratio to the reference level."""
    title = f"Latency of a request, ratio to {report.conditions.latency_reference}"
    numbers = ("p50\nms", "p95\nms", "p99\nms", "requests", "sent.\n/s", "tokens\n/s", "ratio")
    table = table_of(title, ("batch", "beam", "level"), numbers)
    for setting in settings_of(report.conditions):
        for level in report.levels:
            at = level.latency_at(setting)
            times = [milliseconds(value) for value in (at.p50_ms, at.p95_ms, at.p99_ms)]
            rates = [f"{at.sentences_per_s:.1f}", f"{at.tokens_per_s:.0f}", f"{at.ratio:.2f}"]
            table.add_row(str(at.batch), str(at.beam), level.name, *times, str(at.requests), *rates)
        table.add_section()
    return table


def settings_of(conditions: Conditions) -> list[RequestSize]:
    """Every combination of batch size and beam size that was measured."""
    return [RequestSize(batch, beam) for batch in conditions.batches for beam in conditions.beams]


def delta(quality: Quality, level: str) -> str:
    """The BLEU difference and its interval; a dash for the reference level itself."""
    if quality.reference_level == level:
        return "–"
    return f"{quality.bleu_delta:+.2f} [{quality.ci_low:+.2f}, {quality.ci_high:+.2f}]"


def p_value(quality: Quality, level: str) -> str:
    """The p-value with three digits, `<0.001` below that; a dash for the reference level."""
    if quality.reference_level == level:
        return "–"
    return "<0.001" if quality.p_value < 0.001 else f"{quality.p_value:.3f}"


def milliseconds(value: float) -> str:
    """Milliseconds with about three significant figures."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def mebibytes(value: int) -> str:
    """Bytes as MiB, with one decimal as in `hmc levels`."""
    return f"{value / MEBIBYTE:.1f}"


def advice(report: Report, loss: float = LOSS) -> str | None:
    """Names the fastest level that loses at most `loss` BLEU, and the faster ones with what they lose.

    Fastest: at the largest batch measured, with the headline beam. None where quality was not measured.
    """
    conditions = report.conditions
    reference, beam = conditions.quality_reference, conditions.headline.beam
    if reference is None:
        return None
    serving = RequestSize(max(conditions.batches), beam)

    def faster(level: LevelReport, setting: RequestSize) -> float:
        return 1 / level.latency_at(setting).ratio

    losses = {level.name: quality.bleu_delta for level in report.levels if (quality := level.quality_at(beam))}
    good = [level for level in report.levels if losses.get(level.name, -loss - 1) >= -loss]
    best = max(good, key=lambda level: faster(level, serving))
    speeds = " and ".join(f"{faster(best, RequestSize(n, beam)):.1f} at batch {n}" for n in conditions.batches)
    line = (
        f"Take {best.name}: as fast as {conditions.latency_reference} times {speeds}, ΔBLEU {losses[best.name]:+.2f}. "
        f"No level that loses at most {loss:g} BLEU is faster at batch {serving.batch}."
    )
    beyond = [level for level in report.levels if level not in good and faster(level, serving) > faster(best, serving)]
    costs = [f"{x.name} is {faster(x, serving):.1f}× ({losses[x.name]:+.2f})" for x in beyond if x.name in losses]
    return f"{line} Faster, but worse: {', '.join(costs)}." if costs else line
