"""A report as tables for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from hmc.artifact.bundle import Quality
from hmc.benchmark.latency import Setting
from hmc.benchmark.report import Conditions, LevelReport, Report

MEBIBYTE = 2**20


def tables(report: Report) -> RenderableType:
    """One table of what a level is and scores, one of how fast it is."""
    machine = report.machine
    software = [f"Python {machine.python}", *(f"{name} {version}" for name, version in machine.versions.items())]
    where = f"{machine}, {machine.os}, load average {machine.load_average:.1f} at the start"
    ran = f"{where}\n{', '.join(software)}"
    return Group(quality_table(report), latency_table(report), ran)


def quality_table(report: Report) -> Table:
    """Level by level: heads, size, memory, and per beam BLEU, ΔBLEU and chrF."""
    table = Table(title=f"Levels on {report.conditions.test_set}", title_justify="left")
    table.add_column("level", no_wrap=True)
    for name in ("heads", "MiB", "peak MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    beams = report.conditions.beams if report.conditions.quality_reference else ()
    for beam in beams:
        table.add_column(f"BLEU@{beam}", justify="right", no_wrap=True)
        table.add_column("Δ [95 %] p", justify="right")
        table.add_column("chrF", justify="right", no_wrap=True)
    for level in report.levels:
        table.add_row(level.name, str(level.heads), mebibytes(level.bytes), _peak(level), *_scores(level, beams))
    return table


def latency_table(report: Report) -> Table:
    """Setting by setting, level by level."""
    table = Table(title="Latency of a request", title_justify="left")
    for name in ("batch", "beam"):
        table.add_column(name, justify="right")
    table.add_column("level", no_wrap=True)
    for name in ("p50 ms", "p95 ms", "p99 ms", "requests", "sentences/s", "tokens/s", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
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
    """ΔBLEU, its interval and its p-value; a dash for the reference level itself."""
    if quality.reference_level == level:
        return "–"
    p_value = "p<0.002" if quality.p_value < 0.002 else f"p={quality.p_value:.3f}"
    return f"{quality.bleu_delta:+.2f} [{quality.ci_low:+.2f}, {quality.ci_high:+.2f}] {p_value}"


def milliseconds(value: float) -> str:
    """Three significant figures or so."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def mebibytes(value: int) -> str:
    """In MiB, as `hmc levels` shows them."""
    return f"{value / MEBIBYTE:.1f}"


def _peak(level: LevelReport) -> str:
    return mebibytes(level.memory.peak_bytes) if level.memory else "–"


def _scores(level: LevelReport, beams: tuple[int, ...]) -> list[str]:
    cells = []
    for beam in beams:
        quality = level.quality_at(beam)
        cells += [f"{quality.bleu:.2f}", delta(quality, level.name), f"{quality.chrf:.2f}"] if quality else ["–"] * 3
    return cells
