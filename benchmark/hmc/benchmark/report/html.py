"""A report as one page for a browser. It holds everything that it shows, and loads nothing."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from hmc.benchmark.measure.latency import LatencyResult, RequestSize, median_of
from hmc.benchmark.measure.validity import Interval, requests_needed
from hmc.benchmark.report import svg
from hmc.benchmark.report.findings import buckets, differing, worst
from hmc.benchmark.report.results import LevelReport, PeerReport, Report, uncertain
from hmc.benchmark.report.svg import Axis, ChartPoint, Series
from hmc.benchmark.report.tables import advice, delta, mebibytes, milliseconds, p_value, settings_of

TEMPLATE = Path(__file__).with_name("page.html")
MOST_ON_CURVE = 120
"""Points of a curve of percentiles."""

System = LevelReport | PeerReport


def page(report: Report) -> str:
    """The whole page. The same report gives the same page."""
    sections = (
        _head,
        _summary,
        _trade,
        _latency,
        _load,
        _lengths,
        _heads,
        _memory,
        _peers,
        _worst,
        _conditions,
        _samples,
    )
    colours = "\n".join(
        f".c{n} {{ fill: var(--c{n}); }} .line.c{n}, .bar.c{n} {{ fill: none; stroke: var(--c{n}); }}"
        for n in range(svg.STYLES)
    )
    title = f"Benchmark of {Path(report.bundle.path).name}"
    body = "\n".join(section(report) for section in sections)
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(title=escape(title), colours=colours, body=body)


def _head(report: Report) -> str:
    info, conditions = report.bundle, report.conditions
    said = advice(report)
    doubts = uncertain(report)
    languages = f"{info.source_language} → {info.target_language}" if info.source_language else ""
    where = " · ".join(
        part for part in (languages, f"bundle {info.version}", report.began, str(report.machine)) if part
    )
    parts = [
        f"<h1>Benchmark of {escape(Path(info.path).name)}</h1>",
        f'<p class="quiet">{escape(where)}</p>',
        f'<p class="lead">{escape(said)}</p>' if said else "",
        f"<p>Every Δ and every ratio on this page is against <b>{escape(conditions.latency_reference)}</b>. Intervals "
        "are 95 %.</p>",
    ]
    if doubts:
        few = len(doubts) <= 3
        items = _items(doubts)
        told = items if few else f"<details><summary>{len(doubts)} reservations</summary>{items}</details>"
        parts.append(f'<div class="card doubt"><b>What these numbers do not allow to say</b>{told}</div>')
    return "\n".join(parts)


def _styles(report: Report) -> dict[str, int]:
    """System → number of its colour and marker."""
    return {system.name: style for style, system in enumerate(report.systems)}


def _legend(report: Report) -> str:
    items = "".join(f"<li>{svg.key(style)}{escape(system.name)}</li>" for style, system in enumerate(report.systems))
    return f'<ul class="legend">{items}</ul>'


def _summary(report: Report) -> str:
    at, beam = report.conditions.headline, report.conditions.headline.beam
    largest = RequestSize(max(report.conditions.batches), beam)
    heads = [
        "",
        "heads",
        "BLEU",
        "Δ [95 %]",
        "p",
        "chrF",
        "TER",
        f"p50 ms, {at}",
        "ratio [95 %]",
        f"sentences/s, batch {largest.batch}",
    ]
    rows = []
    for style, system in enumerate(report.systems):
        quality, alone, full = system.quality_at(beam), system.latency_at(at), system.latency_at(largest)
        scores = ["–"] * 5
        if quality is not None:
            ter = "–" if system.ter is None else f"{system.ter:.1f}"
            scores = [
                f"{quality.bleu:.2f}",
                delta(quality, system.name),
                p_value(quality, system.name),
                f"{quality.chrf:.1f}",
                ter,
            ]
        rows.append(
            [
                svg.key(style) + escape(system.name),
                str(system.heads) if isinstance(system, LevelReport) else "peer",
                *map(escape, scores),
                _with(alone.p50_ms, alone.p50_interval),
                _ratio(alone),
                _with(full.sentences_per_s, full.rate_interval),
            ]
        )
    return "<h2>Summary</h2>" + _table("", heads, rows)


def _trade(report: Report) -> str:
    """Quality against latency and against throughput."""
    conditions = report.conditions
    if conditions.quality_reference is None:
        return ""
    beam = conditions.headline.beam
    alone, full = conditions.headline, RequestSize(max(conditions.batches), beam)
    figures = []
    for size, name, value in (
        (alone, f"p50 of a request, ms ({alone})", "latency"),
        (full, f"sentences a second ({full})", "throughput"),
    ):
        series = []
        for style, system in enumerate(report.systems):
            quality, at = system.quality_at(beam), system.latency_at(size)
            if quality is None:
                continue
            base = quality.bleu - quality.bleu_delta
            x, ends = (at.p50_ms, at.p50_interval) if value == "latency" else (at.sentences_per_s, at.rate_interval)
            own = (base + quality.ci_low, base + quality.ci_high) if quality.ci_low < quality.ci_high else None
            series.append(Series(system.name, style, (ChartPoint(x, quality.bleu, _ends(ends), own),)))
        xs = [v for each in series for v in (each.points[0].x, *(each.points[0].x_ends or ()))]
        ys = [v for each in series for v in (each.points[0].y, *(each.points[0].y_ends or ()))]
        x_axis = Axis.around(name, xs, log=max(xs) > 8 * min(xs), zero=max(xs) <= 8 * min(xs))
        better = "left" if value == "latency" else "right"
        caption = f"Up and {better} is better. Bars: 95 % of ΔBLEU and of the {value}."
        drawn = svg.scatter(series, x_axis, Axis.around("BLEU", ys), f"BLEU against {value} of each system")
        figures.append(_figure(f"Quality against {value}", caption, drawn))
    return f'<h2>Quality against speed</h2><div class="charts">{"".join(figures)}</div>'


def _latency(report: Report) -> str:
    at, figures = report.conditions.headline, []
    curves = [Series(system.name, style, _curve(system.latency_at(at))) for style, system in enumerate(report.systems)]
    times = [point.y for each in curves for point in each.points]
    most = max(point.x for each in curves for point in each.points)
    drawn = svg.lines(
        curves,
        Axis("percentile", 0, max(100.0, most)),
        Axis.around("ms", times, log=True),
        "Percentiles of request times",
        marks=False,
    )
    caption = f"All requests of all rounds at {at}, up to the highest percentile that so many requests give."
    figures.append(_figure("Request times by percentile", caption, drawn))
    if report.conditions.rounds > 1:
        rounds = [
            Series(
                s.name,
                style,
                tuple(ChartPoint(n, median_of(times)) for n, times in enumerate(s.latency_at(at).samples_ms, 1)),
            )
            for style, s in enumerate(report.systems)
        ]
        medians = [point.y for each in rounds for point in each.points]
        x = Axis("round", 0.5, report.conditions.rounds + 0.5)
        drawn = svg.lines(rounds, x, Axis.around("p50, ms", medians, log=True), "Median time in every round")
        figures.append(_figure("Round by round", "Level lines: the machine was steady.", drawn))
    heads = ["", "batch", "beam", "p50 ms", "p90", "p95", "p99", "requests", "sentences/s", "tokens/s", "ratio [95 %]"]
    rows = []
    for setting in settings_of(report.conditions):
        for style, system in enumerate(report.systems):
            found = system.latency_at(setting)
            rows.append(
                [
                    svg.key(style) + escape(system.name),
                    str(found.batch),
                    str(found.beam),
                    _with(found.p50_ms, found.p50_interval),
                    *(milliseconds(ms) for ms in (found.p90_ms, found.p95_ms, found.p99_ms)),
                    str(found.requests),
                    _with(found.sentences_per_s, found.rate_interval),
                    f"{found.tokens_per_s:,.0f}",
                    _ratio(found),
                ]
            )
    note = (
        f"A dash: fewer requests than the percentile needs ({requests_needed(90)} for p90, {requests_needed(95)} for "
        f"p95, {requests_needed(99)} for p99)."
    )
    return f'<h2>Latency</h2>{_legend(report)}<div class="charts">{"".join(figures)}</div>' + _table(note, heads, rows)


def _curve(at: LatencyResult) -> tuple[ChartPoint, ...]:
    pooled = sorted(ms for times in at.samples_ms for ms in times)
    most = max((p for p in (50.0, 90.0, 95.0, 99.0) if len(pooled) >= requests_needed(p)), default=50.0)
    shares = [most * n / MOST_ON_CURVE for n in range(1, MOST_ON_CURVE + 1)]
    return tuple(ChartPoint(share, pooled[min(len(pooled) - 1, int(len(pooled) * share / 100))]) for share in shares)


def _load(report: Report) -> str:
    if not report.load:
        return ""
    styles = _styles(report)
    objective = report.load[0].objective
    rows = [
        [
            svg.key(styles[curve.name]) + escape(curve.name),
            "none" if curve.saturation is None else f"{'' if curve.bracketed else '≥ '}{curve.saturation:.3g}",
        ]
        for curve in report.load
    ]
    keeps = (
        f"Highest rate at which {objective.share:.0%} of the calls are answered within {objective.milliseconds:g} ms."
    )
    return f"<h2>Load</h2>{_load_charts(report)}{_table(keeps, ['', 'calls/s'], rows)}{_load_table(report)}"


def _load_charts(report: Report) -> str:
    """Latency and goodput by rate. Rates that were stopped early are left out: they saw only a part of the load."""
    styles, objective, waits, goods = _styles(report), report.load[0].objective, list[Series](), list[Series]()
    for curve in report.load:
        whole = [point for point in curve.points if not point.stopped]
        shown = [(p.calls / p.seconds, ms) for p in whole if (ms := p.p90_ms or p.p50_ms) is not None]
        for found, points in ((waits, shown), (goods, [(p.calls / p.seconds, p.goodput) for p in whole])):
            if points:
                found.append(Series(curve.name, styles[curve.name], tuple(ChartPoint(*point) for point in points)))
    if not waits:
        return ""
    x = Axis.around("calls a second that are due", [p.x for each in goods for p in each.points], zero=True)
    limits = [p.y for each in waits for p in each.points] + [objective.milliseconds]
    y = Axis.around("ms", limits, log=True)
    rule = (objective.milliseconds, "objective")
    drawn = svg.lines(waits, x, y, "Latency by rate of calls", rule=rule)
    caption = "p90 of answered calls, from when they were due; p50 where there were too few answers."
    figures = _figure("Latency under load", caption, drawn)
    y = Axis.around("in time, a second", [p.y for each in goods for p in each.points], zero=True)
    caption = f"Calls a second answered within {objective.milliseconds:g} ms. Dashed: every call in time."
    figures += _figure("Goodput", caption, svg.lines(goods, x, y, "Goodput by rate of calls", diagonal=True))
    return f'<div class="charts">{figures}</div>'


def _load_table(report: Report) -> str:
    heads = ["", "calls/s", "calls", "answered", "refused", "failed", "cut", "in time/s", "p50 ms", "p90", "p99", ""]
    rows = [
        [
            escape(curve.name),
            f"{p.rate:.3g}",
            *map(str, (p.calls, p.answered, p.refused, p.failed, p.cut)),
            f"{p.goodput:.3g}",
            *(milliseconds(ms) for ms in (p.p50_ms, p.p90_ms, p.p99_ms)),
            "held" if p.held else "stopped" if p.stopped else "missed",
        ]
        for curve in report.load
        for p in curve.points
    ]
    told = "Cut: under way when a rate was stopped, because it could not keep the objective any more."
    return f"<details><summary>Every rate that was tried</summary>{_table(told, heads, rows)}</details>"


def _lengths(report: Report) -> str:
    found = buckets(report)
    if not found:
        return ""
    names = [system.name for system in report.systems]
    figures = []
    for title, values, axis in (
        ("BLEU", [bucket.bleu for bucket in found], "BLEU"),
        ("p50 at batch 1", [b.p50_ms for b in found], "ms"),
    ):
        series = [
            Series(name, style, tuple(ChartPoint(n, each[name]) for n, each in enumerate(values, 1) if name in each))
            for style, name in enumerate(names)
        ]
        series = [each for each in series if each.points]
        if series:
            x = Axis("bucket of source lengths, shortest first", 0.6, len(found) + 0.4)
            y = Axis.around(axis, [p.y for each in series for p in each.points], log=axis == "ms")
            figures.append(
                _figure(f"{title} by length", "", svg.lines(series, x, y, f"{title} by length of the source"))
            )
    heads = [
        "source tokens",
        "sentences",
        *(f"{escape(n)} BLEU" for n in names if n in found[0].bleu),
        *(f"{escape(n)} ms" for n in names if n in found[0].p50_ms),
    ]
    rows = [
        [
            f"{b.low} to {b.high}",
            str(b.sentences),
            *(f"{v:.1f}" for v in b.bleu.values()),
            *(milliseconds(v) for v in b.p50_ms.values()),
        ]
        for b in found
    ]
    return f'<h2>By length of the sentence</h2><div class="charts">{"".join(figures)}</div>' + _table("", heads, rows)


def _heads(report: Report) -> str:
    maps = []
    for level in (level for level in report.levels if level.head_layout):
        kinds = "".join(
            f'<div class="k{n}">{escape(kind.replace("_", " "))}: {sum(map(len, rows))}'
            f"{svg.head_map(rows, report.heads, f'{level.name}: open heads, {kind}')}</div>"
            for n, (kind, rows) in enumerate(level.head_layout.items())
        )
        caption = f"{level.heads} open heads; a row for each layer, the first on top"
        maps.append(_figure(level.name, caption, f'<div class="kinds">{kinds}</div>'))
    return f'<h2>Heads</h2><div class="maps">{"".join(maps)}</div>' if maps else ""


def _memory(report: Report) -> str:
    styles = _styles(report)
    measured = [(level, level.memory) for level in report.levels if level.memory]
    figure = ""
    if measured:
        rows = [
            (
                level.name,
                styles[level.name],
                [
                    (m.before_load_bytes, ""),
                    (max(0, m.peak_bytes - m.before_load_bytes), f"{mebibytes(m.peak_bytes)} MiB"),
                ],
            )
            for level, m in measured
        ]
        caption = (
            "Peak resident memory of a process that loads the level: before loading (solid), and what the level adds."
        )
        figure = f'<div class="charts">{_figure("Memory", caption, svg.bars(rows, "Peak memory of each level"))}</div>'
    heads = [
        "",
        "precision",
        "parameters",
        "MiB on disk",
        "peak MiB",
        "held MiB",
        "cold start s",
        "of it loading s",
        "first token p50 ms",
        "whole p50 ms",
    ]
    table = []
    for level in report.levels:
        m, first = level.memory, level.first_token
        sizes = [mebibytes(m.peak_bytes), mebibytes(m.held_bytes)] if m else ["–", "–"]
        starts = [f"{m.cold_start_s:.2f}", f"{m.load_s:.2f}"] if m and m.cold_start_s and m.load_s else ["–", "–"]
        firsts = [milliseconds(first.p50_ms), milliseconds(first.whole_p50_ms)] if first else ["–", "–"]
        table.append(
            [
                svg.key(styles[level.name]) + escape(level.name),
                level.precision,
                f"{level.parameters:,}",
                mebibytes(level.bytes),
                *sizes,
                *starts,
                *firsts,
            ]
        )
    note = "First token: until the first piece of text that no later step can change, one sentence at a time."
    return "<h2>Memory and start</h2>" + figure + _table(note, heads, table)


def _peers(report: Report) -> str:
    if not report.peers:
        return ""
    heads = [
        "",
        "version",
        "request",
        "fastest setting",
        f"translations equal to those of {escape(report.conditions.latency_reference)}",
    ]
    rows = [
        [escape(peer.name), escape(peer.version), escape(request), escape(setting), f"{peer.same:.1%}"]
        for peer in report.peers
        for request, setting in peer.settings.items()
    ]
    return "<h2>Peers</h2>" + _table(
        "The same weights, each engine at its fastest setting for a size of request.", heads, rows
    )


def _worst(report: Report) -> str:
    cards = []
    for each in worst(report):
        base = each.translations[report.conditions.latency_reference]
        rows = [f"<dt>source</dt><dd>{escape(each.source)}</dd><dt>reference</dt><dd>{escape(each.reference)}</dd>"]
        for name, text in each.translations.items():
            runs = (f"<mark>{escape(words)}</mark>" if new else escape(words) for words, new in differing(text, base))
            rows.append(f"<dt>{escape(name)}</dt><dd>{' '.join(runs) or '–'}</dd>")
        title = f"<h3>{escape(each.level)} loses {each.lost:.0f} chrF</h3>"
        cards.append(f'<article class="card">{title}<dl>{"".join(rows)}</dl></article>')
    if not cards:
        return ""
    reference = escape(report.conditions.latency_reference)
    told = f"The sentences in which a level loses most. Marked: words that {reference} does not write there."
    return f'<h2>Worst sentences, side by side</h2><p class="quiet">{told}</p><div class="worst">{"".join(cards)}</div>'


def _conditions(report: Report) -> str:
    machine = report.machine
    where = [
        str(machine),
        machine.os,
        f"{machine.memory_bytes / 2**30:.1f} GiB of memory",
        f"{machine.physical_cores} physical cores, of which this process may use {machine.logical_cores}",
        f"load average {machine.load_average:.1f} at the start",
        f"Python {machine.python}",
        *(f"{name} {version}" for name, version in machine.versions.items()),
        f"commit {report.commit}" if report.commit else "commit: not of a checkout",
        f"began {report.began}",
    ]
    quality = next((q for system in report.systems for q in system.quality), None)
    signatures = [f"BLEU: {quality.bleu_signature}", f"chrF: {quality.chrf_signature}"] if quality else []
    return (
        f"<h2>How it was measured</h2>{_items(report.contract.splitlines() + signatures)}"
        f"<h2>Machine</h2>{_items(where)}"
    )


def _samples(report: Report) -> str:
    """The whole report as a link, so that the page is all that has to be kept."""
    text = base64.b64encode(report.to_json().encode()).decode("ascii")
    times = sum(len(times) for system in report.systems for at in system.latency for times in at.samples_ms)
    calls = sum(point.calls for curve in report.load for point in curve.points)
    said = f"{times:,} timed requests" + (f", {calls:,} calls under load" if calls else "")
    return (
        f"<h2>Samples</h2><p>{said}, and every translation: "
        f'<a download="report.json" href="data:application/json;base64,{text}">report.json</a>, which '
        "<code>hmc bench compare</code> reads.</p>"
    )


def _table(note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """heads and rows: HTML. A table that is too wide scrolls by itself."""
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    said = f'<p class="quiet note">{note}</p>' if note else ""
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'{said}<div class="scroll" tabindex="0">{table}</div>'


def _figure(title: str, caption: str, drawn: str) -> str:
    return f"<figure><figcaption><b>{escape(title)}</b>{escape(caption)}</figcaption>{drawn}</figure>"


def _items(texts: Iterable[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>'


def _ends(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (interval.low, interval.high)


def _with(value: float, interval: Interval | None) -> str:
    if interval is None:
        return milliseconds(value)
    return f"{milliseconds(value)} [{milliseconds(interval.low)}, {milliseconds(interval.high)}]"


def _ratio(at: LatencyResult) -> str:
    if at.ratio_interval is None or at.ratio_interval.low == at.ratio_interval.high:
        return f"{at.ratio:.2f}"
    return f"{at.ratio:.2f} [{at.ratio_interval.low:.2f}, {at.ratio_interval.high:.2f}]"
