"""A report as tables for people; they fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hmc.artifact.bundle import Quality
from hmc.benchmark.latency import Setting
from hmc.benchmark.report import Conditions, Report

MEBIBYTE = 2**20


def tables(report: Report) -> RenderableType:
    """What the levels are, what they score, how fast they are, and where that was measured."""
    machine = report.machine
    software = [f"Python {machine.python}", *(f"{name} {version}" for name, version in machine.versions.items())]
    where = f"{machine}, {machine.os}, load average {machine.load_average:.1f} at the start"
    scores = [quality_table(report)] if report.conditions.quality_reference else []
    return Group(size_table(report), *scores, latency_table(report), f"{where}\n{', '.join(software)}")


def table_of(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table: columns of texts, then of numbers."""
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in texts:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def size_table(report: Report) -> Table:
    """Level by level: heads, parameters, bytes on disk and in memory."""
    table = table_of("Levels", ("level", "precision"), ("heads", "parameters", "MiB on disk", "peak MiB"))
    for level in report.levels:
        peak = mebibytes(level.memory.peak_bytes) if level.memory else "–"
        size = (f"{level.parameters:,}", mebibytes(level.bytes), peak)
        table.add_row(level.name, level.precision, str(level.heads), *size)
    return table


def quality_table(report: Report) -> Table:
    """Beam by beam, level by level."""
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
    """Setting by setting, level by level."""
    numbers = ("p50\nms", "p95\nms", "p99\nms", "requests", "sent.\n/s", "tokens\n/s", "ratio")
    table = table_of("Latency of a request", ("batch", "beam", "level"), numbers)
    for setting in settings_of(report.conditions):
        for level in report.levels:
            at = level.latency_at(setting)
            times = [milliseconds(value) for value in (at.p50_ms, at.p95_ms, at.p99_ms)]
            rates = [f"{at.sentences_per_s:.1f}", f"{at.tokens_per_s:.0f}", f"{at.ratio:.2f}"]
            table.add_row(str(at.batch), str(at.beam), level.name, *times, str(at.requests), *rates)
        table.add_section()
    return table


def settings_of(conditions: Conditions) -> list[Setting]:
    """Every setting measured."""
    return [Setting(batch, beam) for batch in conditions.batches for beam in conditions.beams]


def delta(quality: Quality, level: str) -> str:
    """ΔBLEU and its interval; a dash for the reference level itself."""
    if quality.reference_level == level:
        return "–"
    return f"{quality.bleu_delta:+.2f} [{quality.ci_low:+.2f}, {quality.ci_high:+.2f}]"


def p_value(quality: Quality, level: str) -> str:
    """The p-value, or a dash for the reference level; 1000 resamples say nothing below 0.002."""
    if quality.reference_level == level:
        return "–"
    return "<0.002" if quality.p_value < 0.002 else f"{quality.p_value:.3f}"


def milliseconds(value: float) -> str:
    """Three significant figures or so."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def mebibytes(value: int) -> str:
    """In MiB, as `hmc levels` shows them."""
    return f"{value / MEBIBYTE:.1f}"
