"""A report as one page for a browser. It holds everything that it shows, and loads nothing."""

from __future__ import annotations

import base64
from html import escape
from itertools import chain
from pathlib import Path
from string import Template

from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.report import svg
from hmc.benchmark.report.findings import MOST_SCORED, differing, worst
from hmc.benchmark.report.html_charts import latency, lengths, load, trade
from hmc.benchmark.report.html_parts import figure, items, ratio, styles_of, table, with_interval
from hmc.benchmark.report.results import LevelReport, Report, uncertain
from hmc.benchmark.report.tables import advice, delta, mebibytes, milliseconds, p_value, setting_rows

TEMPLATE = Path(__file__).with_name("page.html")


def page(report: Report) -> str:
    """The whole page. The same report gives the same page."""
    sections = (
        _head,
        _summary,
        trade,
        latency,
        load,
        lengths,
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
    info = report.bundle
    conditions = report.conditions
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
        told = items(doubts)
        if not few:
            told = f"<details><summary>{len(doubts)} reservations</summary>{told}</details>"
        parts.append(f'<div class="card doubt"><b>What these numbers do not allow to say</b>{told}</div>')
    return "\n".join(parts)


def _summary(report: Report) -> str:
    at = report.conditions.headline
    beam = at.beam
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
        quality = system.quality_at(beam)
        alone = system.latency_at(at)
        full = system.latency_at(largest)
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
                with_interval(alone.p50_ms, alone.p50_interval),
                ratio(alone),
                with_interval(full.sentences_per_s, full.rate_interval),
            ]
        )
    return "<h2>Summary</h2>" + table("", heads, rows)


def _heads(report: Report) -> str:
    maps = []
    for level in (level for level in report.levels if level.head_layout):
        kinds = "".join(
            f'<div class="k{n}">{escape(kind.replace("_", " "))}: {sum(map(len, rows))}'
            f"{svg.head_map(rows, report.heads, f'{level.name}: open heads, {kind}')}</div>"
            for n, (kind, rows) in enumerate(level.head_layout.items())
        )
        caption = f"{level.heads} open heads; a row for each layer, the first on top"
        maps.append(figure(level.name, caption, f'<div class="kinds">{kinds}</div>'))
    return f'<h2>Heads</h2><div class="maps">{"".join(maps)}</div>' if maps else ""


def _memory(report: Report) -> str:
    styles = styles_of(report)
    measured = [(level, level.memory) for level in report.levels if level.memory]
    drawn = ""
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
        drawn = f'<div class="charts">{figure("Memory", caption, svg.bars(rows, "Peak memory of each level"))}</div>'
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
    sizes_and_starts = []
    for level in report.levels:
        m = level.memory
        first = level.first_token
        sizes = [mebibytes(m.peak_bytes), mebibytes(m.held_bytes)] if m else ["–", "–"]
        starts = [f"{m.cold_start_s:.2f}", f"{m.load_s:.2f}"] if m and m.cold_start_s and m.load_s else ["–", "–"]
        firsts = [milliseconds(first.p50_ms), milliseconds(first.whole_p50_ms)] if first else ["–", "–"]
        sizes_and_starts.append(
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
    return "<h2>Memory and start</h2>" + drawn + table(note, heads, sizes_and_starts)


def _peers(report: Report) -> str:
    if not report.peers:
        return ""
    heads = [
        "",
        "version",
        "request",
        "fastest setting",
        f"translations equal to the translations of {escape(report.conditions.latency_reference)}",
    ]
    rows = [list(map(escape, row)) for row in chain.from_iterable(setting_rows(report))]
    return "<h2>Settings of the engines</h2>" + table(
        "Each engine at its fastest setting for a size of request, with the same weights.", heads, rows
    )


def _worst(report: Report) -> str:
    cards = []
    for sentence in worst(report):
        base = sentence.translations[report.conditions.latency_reference]
        rows = [
            f"<dt>source</dt><dd>{escape(sentence.source)}</dd><dt>reference</dt><dd>{escape(sentence.reference)}</dd>"
        ]
        for name, text in sentence.translations.items():
            runs = []
            for words, is_new in differing(text, base):
                run = escape(words)
                runs.append(f"<mark>{run}</mark>" if is_new else run)
            rows.append(f"<dt>{escape(name)}</dt><dd>{' '.join(runs) or '–'}</dd>")
        title = f"<h3>{escape(sentence.level)} loses {sentence.lost:.0f} chrF</h3>"
        cards.append(f'<article class="card">{title}<dl>{"".join(rows)}</dl></article>')
    if not cards:
        return ""
    reference = escape(report.conditions.latency_reference)
    among = f" of the first {MOST_SCORED:,}" if len(report.sentences) > MOST_SCORED else ""
    told = f"The sentences{among} in which a level loses most. Marked: words that {reference} does not write there."
    return f'<h2>Worst sentences, side by side</h2><p class="quiet">{told}</p><div class="worst">{"".join(cards)}</div>'


def _conditions(report: Report) -> str:
    machine = report.machine
    where = [
        str(machine),
        machine.os,
        f"{machine.memory_bytes / 2**30:.1f} GiB of memory",
        f"{machine.physical_cores} physical cores; this process may use {machine.logical_cores} logical ones",
        f"load average {machine.load_average:.1f} at the start",
        f"Python {machine.python}",
        *(f"{name} {version}" for name, version in machine.versions.items()),
        f"commit {report.commit}" if report.commit else "commit: not of a checkout",
        f"began {report.began}",
    ]
    quality = next(chain.from_iterable(system.quality for system in report.systems), None)
    signatures = [f"BLEU: {quality.bleu_signature}", f"chrF: {quality.chrf_signature}"] if quality else []
    return (
        f"<h2>How it was measured</h2>{items(report.contract.splitlines() + signatures)}<h2>Machine</h2>{items(where)}"
    )


def _samples(report: Report) -> str:
    """The whole report as a link, so that the page is all that has to be kept."""
    text = base64.b64encode(report.to_json().encode()).decode("ascii")
    measured = chain.from_iterable(system.latency for system in report.systems)
    times = sum(sum(map(len, at.samples_ms)) for at in measured)
    calls = sum(point.calls for point in chain.from_iterable(curve.points for curve in report.load))
    said = f"{times:,} timed requests" + (f", {calls:,} calls under load" if calls else "")
    return (
        f"<h2>Samples</h2><p>{said}, and every translation: "
        f'<a download="report.json" href="data:application/json;base64,{text}">report.json</a>, which '
        "<code>hmc bench compare</code> reads.</p>"
    )
