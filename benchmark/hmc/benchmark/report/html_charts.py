"""The sections of a page with curves: quality against speed, latency, load, and lengths of sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import chain, count

from hmc.benchmark.measure.latency import LatencyResult, RequestSize, median_of
from hmc.benchmark.measure.validity import DRIFT, FEWEST_ROUNDS, SPREAD, requests_needed
from hmc.benchmark.report import svg
from hmc.benchmark.report.findings import buckets
from hmc.benchmark.report.html_parts import figure, legend, ratio, styles_of, table, with_interval
from hmc.benchmark.report.picture import picture
from hmc.benchmark.report.results import Report
from hmc.benchmark.report.svg import Axis, ChartPoint, Series
from hmc.benchmark.report.tables import goodput, milliseconds, settings_of

MOST_ON_CURVE = 120
"""Points of a curve of percentiles."""


def trade(report: Report) -> str:
    """Quality against speed, for the smallest and the largest requests."""
    conditions = report.conditions
    if conditions.quality_reference is None:
        return ""
    largest = RequestSize(max(conditions.batches), conditions.headline.beam)
    pictures = [picture(report, size) for size in dict.fromkeys((conditions.headline, largest))]
    figures = "".join(f"<figure>{drawn}</figure>" for drawn in pictures)
    left_out = "Levels that another level beats in both are in the tables alone."
    return f'<h2>Quality against speed</h2><p class="quiet note">{left_out}</p><div class="charts">{figures}</div>'


def places(curves: Sequence[Series]) -> tuple[list[float], list[float]]:
    """The x and the y of all points of curves."""
    points = list(chain.from_iterable(curve.points for curve in curves))
    return [point.x for point in points], [point.y for point in points]


def _steady(report: Report) -> str:
    """What the rounds say of the machine."""
    at = report.conditions.headline
    seen = {system.name: system.latency_at(at).steadiness.steady for system in report.systems}
    if None in seen.values():
        return f"With fewer than {FEWEST_ROUNDS} rounds nothing tells whether the machine was steady."
    unsteady = [name for name, steady in seen.items() if not steady]
    limits = f"{DRIFT:.0%} from the first half to the second, and {SPREAD:.0%} between the fastest and the slowest"
    if unsteady:
        return f"Not steady: {', '.join(unsteady)}. The times of a steady system differ by at most {limits}."
    return f"The machine was steady: times differ by at most {limits}."


def latency(report: Report) -> str:
    at = report.conditions.headline
    figures = []
    curves = [Series(system.name, style, _curve(system.latency_at(at))) for style, system in enumerate(report.systems)]
    shares, times = places(curves)
    drawn = svg.lines(
        curves,
        Axis("percentile", 0, max(100.0, *shares)),
        Axis.around("ms", times, log=True),
        "Percentiles of request times",
        marks=False,
    )
    caption = f"All requests of all rounds at {at}, up to the highest percentile that so many requests give."
    figures.append(figure("Request times by percentile", caption, drawn))
    if report.conditions.rounds > 1:
        rounds = []
        for style, system in enumerate(report.systems):
            medians = map(median_of, system.latency_at(at).samples_ms)
            rounds.append(Series(system.name, style, tuple(map(ChartPoint, count(1), medians))))
        _, heights = places(rounds)
        x = Axis("round", 0.5, report.conditions.rounds + 0.5)
        drawn = svg.lines(rounds, x, Axis.around("p50, ms", heights, log=True), "Median time in every round")
        figures.append(figure("Round by round", _steady(report), drawn))
    heads = ["", "batch", "beam", "p50 ms", "p90", "p95", "p99", "requests", "sentences/s", "tokens/s", "ratio [95 %]"]
    rows = []
    for setting in settings_of(report.conditions):
        for style, system in enumerate(report.systems):
            measured = system.latency_at(setting)
            rows.append(
                [
                    svg.key(style) + escape(system.name),
                    str(measured.batch),
                    str(measured.beam),
                    with_interval(measured.p50_ms, measured.p50_interval),
                    *map(milliseconds, (measured.p90_ms, measured.p95_ms, measured.p99_ms)),
                    str(measured.requests),
                    with_interval(measured.sentences_per_s, measured.rate_interval),
                    f"{measured.tokens_per_s:,.0f}",
                    ratio(measured),
                ]
            )
    note = (
        f"A dash: fewer requests than the percentile needs ({requests_needed(90)} for p90, {requests_needed(95)} for "
        f"p95, {requests_needed(99)} for p99)."
    )
    return f'<h2>Latency</h2>{legend(report)}<div class="charts">{"".join(figures)}</div>' + table(note, heads, rows)


def _curve(at: LatencyResult) -> tuple[ChartPoint, ...]:
    pooled = sorted(chain.from_iterable(at.samples_ms))
    most = max((p for p in (50.0, 90.0, 95.0, 99.0) if len(pooled) >= requests_needed(p)), default=50.0)
    shares = [most * n / MOST_ON_CURVE for n in range(1, MOST_ON_CURVE + 1)]
    return tuple(ChartPoint(share, pooled[math.ceil(len(pooled) * share / 100) - 1]) for share in shares)


def load(report: Report) -> str:
    if not report.load:
        return ""
    styles = styles_of(report)
    objective = report.load[0].objective
    rows = []
    for curve in report.load:
        rate = "none" if curve.saturation is None else f"{curve.saturation:.3g}"
        if curve.saturation is not None and not curve.bracketed:
            rate = f"≥ {rate}"
        rows.append([svg.key(styles[curve.name]) + escape(curve.name), rate])
    keeps = (
        f"Highest rate at which {objective.share:.0%} of the calls are answered within {objective.milliseconds:g} ms."
    )
    return f"<h2>Load</h2>{_load_charts(report)}{table(keeps, ['', 'calls/s'], rows)}{_load_table(report)}"


def _load_charts(report: Report) -> str:
    """Latency and goodput by rate. Rates that were stopped early are left out: they saw only a part of the load."""
    styles = styles_of(report)
    objective = report.load[0].objective
    waits = list[Series]()
    goods = list[Series]()
    for curve in report.load:
        in_time = []
        percentiles = []
        for point in curve.points:
            if point.stopped:
                continue
            due = point.calls / point.seconds
            in_time.append(ChartPoint(due, point.goodput))
            ms = point.p90_ms or point.p50_ms
            if ms is not None:
                percentiles.append(ChartPoint(due, ms))
        for series, points in ((waits, percentiles), (goods, in_time)):
            if points:
                series.append(Series(curve.name, styles[curve.name], tuple(points)))
    if not waits:
        return ""
    rates, goodputs = places(goods)
    _, times = places(waits)
    x = Axis.around("calls a second that are due", rates, zero=True)
    y = Axis.around("ms", [*times, objective.milliseconds], log=True)
    rule = (objective.milliseconds, "objective")
    drawn = svg.lines(waits, x, y, "Latency by rate of calls", rule=rule)
    caption = "p90 of answered calls, from when they were due; p50 where there were too few answers."
    figures = figure("Latency under load", caption, drawn)
    y = Axis.around("in time, a second", goodputs, zero=True)
    caption = f"Calls a second answered within {objective.milliseconds:g} ms. Dashed: every call in time."
    figures += figure("Goodput", caption, svg.lines(goods, x, y, "Goodput by rate of calls", diagonal=True))
    return f'<div class="charts">{figures}</div>'


def _load_table(report: Report) -> str:
    heads = ["", "calls/s", "calls", "answered", "refused", "failed", "cut", "in time/s", "p50 ms", "p90", "p99", ""]
    rows = []
    for curve in report.load:
        for p in curve.points:
            counts = map(str, (p.calls, p.answered, p.refused, p.failed, p.cut))
            times = map(milliseconds, (p.p50_ms, p.p90_ms, p.p99_ms))
            rows.append([escape(curve.name), f"{p.rate:.3g}", *counts, goodput(p), *times, p.verdict])
    told = "Stopped: it could not keep the objective any more, so it has no percentiles. Cut: under way at that moment."
    return f"<details><summary>Every rate that was tried</summary>{table(told, heads, rows)}</details>"


def lengths(report: Report) -> str:
    by_length = buckets(report)
    if not by_length:
        return ""
    names = [system.name for system in report.systems]
    figures = []
    for title, values, axis in (
        ("BLEU", [bucket.bleu for bucket in by_length], "BLEU"),
        ("p50 at batch 1", [bucket.p50_ms for bucket in by_length], "ms"),
    ):
        series = []
        for style, name in enumerate(names):
            points = tuple(ChartPoint(n, each[name]) for n, each in enumerate(values, 1) if name in each)
            if points:
                series.append(Series(name, style, points))
        if series:
            _, heights = places(series)
            x = Axis("bucket of source lengths, shortest first", 0.6, len(by_length) + 0.4)
            y = Axis.around(axis, heights, log=axis == "ms")
            figures.append(
                figure(f"{title} by length", "", svg.lines(series, x, y, f"{title} by length of the source"))
            )
    ever_timed = set(chain.from_iterable(bucket.p50_ms for bucket in by_length))
    timed = [name for name in names if name in ever_timed]
    heads = [
        "source tokens",
        "sentences",
        *(f"{escape(n)} BLEU" for n in names if n in by_length[0].bleu),
        *(f"{escape(n)} ms" for n in timed),
    ]
    rows = []
    for bucket in by_length:
        scores = (f"{value:.1f}" for value in bucket.bleu.values())
        times = (milliseconds(bucket.p50_ms.get(name)) for name in timed)
        rows.append([f"{bucket.low} to {bucket.high}", str(bucket.sentences), *scores, *times])
    note = "BLEU is of all sentences of a length, times are of those that were timed."
    return f'<h2>By length of the sentence</h2><div class="charts">{"".join(figures)}</div>' + table(note, heads, rows)
