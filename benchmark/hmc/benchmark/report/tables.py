"""A report as tables, which fit a terminal of 80 columns, and the advice that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product, starmap

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hmc.artifact.bundle.manifest import Quality
from hmc.artifact.bundle.order import ladder, recommended, rule
from hmc.benchmark.load.results import LoadCurve, LoadPoint
from hmc.benchmark.measure.latency import LatencyResult, RequestSize
from hmc.benchmark.measure.validity import FEWEST_ROUNDS
from hmc.benchmark.report.results import Conditions, PeerReport, Report

MEBIBYTE = 2**20


def tables(report: Report) -> RenderableType:
    """All tables of a report: sizes, quality, latency, peers, load, and the machine."""
    machine = report.machine
    software = [f"Python {machine.python}", *(f"{name} {version}" for name, version in machine.versions.items())]
    where = f"{machine}, {machine.os}, load average {machine.load_average:.1f} at the start"
    scores = [quality_table(report)] if report.conditions.quality_reference else []
    more = [peer_table(report)] if report.peers else []
    more += list(map(load_table, report.load))
    return Group(size_table(report), *scores, latency_table(report), *more, f"{where}\n{', '.join(software)}")


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
    numbers = ("heads", "parameters", "MiB on\ndisk", "peak\nMiB", "cold\nstart s", "first\ntoken ms")
    table = table_of("Levels", ("level", "precision"), numbers)
    for level in report.levels:
        peak = mebibytes(level.memory.peak_bytes) if level.memory else "–"
        cold = f"{level.memory.cold_start_s:.1f}" if level.memory and level.memory.cold_start_s else "–"
        first = milliseconds(level.first_token.p50_ms) if level.first_token else "–"
        size = (f"{level.parameters:,}", mebibytes(level.bytes), peak, cold, first)
        table.add_row(level.name, level.precision, str(level.heads), *size)
    return table


def quality_table(report: Report) -> Table:
    """A row for each beam size and level: BLEU, its difference with interval and p-value, chrF."""
    conditions = report.conditions
    title = (
        f"Quality: {conditions.sentences} sentences of {conditions.test_set}, Δ against {conditions.quality_reference}"
    )
    table = table_of(title, ("beam", "level"), ("BLEU", "Δ [95 %]", "p", "chrF", "TER"))
    for beam in conditions.beams:
        for level in report.systems:
            quality = level.quality_at(beam)
            if quality is not None:
                differs = (delta(quality, level.name), p_value(quality, level.name))
                edits = f"{level.ter:.2f}" if level.ter is not None and beam == conditions.headline.beam else "–"
                table.add_row(str(beam), level.name, f"{quality.bleu:.2f}", *differs, f"{quality.chrf:.2f}", edits)
        table.add_section()
    return table


def latency_table(report: Report) -> Table:
    """A row for each setting and level: percentiles, rates, and the ratio to the reference level."""
    title = f"Latency of a request, ratio to {report.conditions.latency_reference}"
    numbers = ("p50\nms", "p95\nms", "p99\nms", "requests", "sent.\n/s", "tokens\n/s", "ratio")
    table = table_of(title, ("batch", "beam", "level"), numbers)
    for setting in settings_of(report.conditions):
        for level in report.systems:
            at = level.latency_at(setting)
            times = list(map(milliseconds, (at.p50_ms, at.p95_ms, at.p99_ms)))
            rates = [f"{at.sentences_per_s:.1f}", f"{at.tokens_per_s:.0f}", f"{at.ratio:.2f}"]
            table.add_row(str(at.batch), str(at.beam), level.name, *times, str(at.requests), *rates)
        table.add_section()
    return table


def peer_table(report: Report) -> Table:
    """A row for each engine and size of request: its setting there and, if a peer translated the test set, the share of
    equal translations."""
    title = f"Settings of the engines; same: translations equal to {report.conditions.latency_reference}"
    table = table_of(title, ("engine", "version", "request", "setting"), ("same",))
    for rows in setting_rows(report):
        for row in rows:
            table.add_row(*row)
        table.add_section()
    return table


def setting_rows(report: Report) -> list[list[tuple[str, str, str, str, str]]]:
    """The rows of each engine: name, version, size of request, setting, share of equal translations."""
    own = report.machine.versions.get("hmc", "–")
    engines = []
    for level in report.levels:
        rows = [(level.name, own, request, setting, "–") for request, setting in level.settings.items()]
        engines.append(rows)
    for peer in report.peers:
        rows = []
        for request, setting in peer.settings.items():
            rows.append((peer.name, peer.version, request, setting, same(report, peer, request)))
        engines.append(rows)
    return list(filter(None, engines))


def same(report: Report, peer: PeerReport, request: str) -> str:
    """The share of equal translations, at the size of request that they were made at; a dash elsewhere."""
    size = RequestSize(max(report.conditions.batches), report.conditions.headline.beam)
    return f"{peer.same:.1%}" if request == str(size) else "–"


def load_table(curve: LoadCurve) -> Table:
    """A row for each rate: the outcome of its calls, and their latency since they were due."""
    saturation = curve.saturation
    kept = f"{curve.objective.share:.3g} of the calls within {curve.objective.milliseconds:g} ms"
    if saturation is None:
        said = f"no rate keeps {kept}"
    else:
        said = f"keeps {kept} up to {'' if curve.bracketed else 'at least '}{saturation:.3g} calls/s"
    table = table_of(
        f"Load on {curve.name}, {curve.arrivals} arrivals, beam {curve.beam}: {said}",
        ("calls/s",),
        ("calls", "answered", "refused", "failed", "in time\n/s", "p50\nms", "p90\nms", "p99\nms", ""),
    )
    for point in curve.points:
        counts = list(map(str, (point.calls, point.answered, point.refused, point.failed)))
        times = list(map(milliseconds, (point.p50_ms, point.p90_ms, point.p99_ms)))
        table.add_row(f"{point.rate:.3g}", *counts, goodput(point), *times, point.verdict)
    return table


def goodput(point: LoadPoint) -> str:
    """Calls in time a second; a dash for a load that was stopped, because it would hold only until then."""
    return "–" if point.stopped else f"{point.goodput:.3g}"


def settings_of(conditions: Conditions) -> list[RequestSize]:
    """Every combination of batch size and beam size that was measured."""
    return list(starmap(RequestSize, product(conditions.batches, conditions.beams)))


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


def milliseconds(value: float | None) -> str:
    """Milliseconds with about three significant figures; a dash if it was not measured often enough."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def mebibytes(value: int) -> str:
    """Bytes as MiB, with one decimal as in `hmc levels`."""
    return f"{value / MEBIBYTE:.1f}"


def advice(report: Report) -> str | None:
    """Names the recommended level (`hmc.artifact.bundle.order`), and surely faster levels with their losses. Levels
    that another level beats are left out. It compares the times of the headline setting, which the bundle records.
    Scores are the recorded scores of the bundle if they are on more sentences, else the scores of this report.
    Too few rounds for intervals make nothing sure, and the line says so.

    None where no level has scores.
    """
    conditions = report.conditions
    setting = conditions.headline
    levels = {level.name: level for level in report.levels}
    described = report.described_levels()
    scores = [level.quality for level in described if level.quality]
    if not scores:
        return None
    best = recommended(described)
    steps = [step.name for step in ladder(described)]

    def costs(name: str) -> str:
        return delta(quality, name) if (quality := levels[name].deciding(setting.beam)) else "unknown"

    def is_faster(name: str) -> bool:
        """Whether it is faster than the recommended level, by intervals that do not overlap where there are any."""
        one = levels[name].latency_at(setting)
        two = levels[best.name].latency_at(setting)
        high = one.ratio_interval.high if one.ratio_interval else one.ratio
        return high < (two.ratio_interval.low if two.ratio_interval else two.ratio)

    bounds = rule(described)
    why = f"the fastest level that {bounds}" if best.keeps else f"the best one: none {bounds}"
    line = f"Take {best.name}, {why}."
    if best.name != conditions.latency_reference:
        sizes = [RequestSize(batch, setting.beam) for batch in conditions.batches]
        speeds = ", ".join(f"{_times(levels[best.name].latency_at(size))} at batch {size.batch}" for size in sizes)
        line += f" Times as fast as {conditions.latency_reference}: {speeds}. ΔBLEU: {costs(best.name)}."
    if faster := [name for name in steps[steps.index(best.name) + 1 :] if is_faster(name)]:
        others = (f"{x} is {_times(levels[x].latency_at(setting))} times as fast, ΔBLEU {costs(x)}" for x in faster)
        unsure = levels[best.name].latency_at(setting).ratio_interval is None
        lead = f"Perhaps faster (--rounds {FEWEST_ROUNDS} or more tells)" if unsure else "Faster"
        line += f" {lead}, but loses more: {'; '.join(others)}."
    if report.levels[0].recorded:
        line += f" BLEU as it was recorded, on {scores[0].sentences:,} sentences of {scores[0].test_set}."
    return line


def _times(at: LatencyResult) -> str:
    """How many times as fast as the reference level, with its interval if there is one."""
    ends = at.ratio_interval
    return f"{1 / at.ratio:.1f}" + (f" [{1 / ends.high:.1f}, {1 / ends.low:.1f}]" if ends else "")
