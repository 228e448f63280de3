"""The pieces of a page: tables, figures, lists, and numbers with their intervals, as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from hmc.benchmark.measure.latency import LatencyResult
from hmc.benchmark.measure.validity import Interval
from hmc.benchmark.report import svg
from hmc.benchmark.report.results import Report
from hmc.benchmark.report.tables import milliseconds


def table(note: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """heads and rows: HTML. A table that is too wide scrolls by itself."""
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = ""
    for first, *others in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in others)
        body += f'<tr><th scope="row">{first}</th>{cells}</tr>'
    said = f'<p class="quiet note">{note}</p>' if note else ""
    whole = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'{said}<div class="scroll" tabindex="0">{whole}</div>'


def figure(title: str, caption: str, drawn: str) -> str:
    return f"<figure><figcaption><b>{escape(title)}</b>{escape(caption)}</figcaption>{drawn}</figure>"


def items(texts: Iterable[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>'


def with_interval(value: float, interval: Interval | None) -> str:
    if interval is None:
        return milliseconds(value)
    return f"{milliseconds(value)} [{milliseconds(interval.low)}, {milliseconds(interval.high)}]"


def ratio(at: LatencyResult) -> str:
    if at.ratio_interval is None or at.ratio_interval.low == at.ratio_interval.high:
        return f"{at.ratio:.2f}"
    return f"{at.ratio:.2f} [{at.ratio_interval.low:.2f}, {at.ratio_interval.high:.2f}]"


def styles_of(report: Report) -> dict[str, int]:
    """System → number of its colour and marker."""
    return {system.name: style for style, system in enumerate(report.systems)}


def legend(report: Report) -> str:
    items = "".join(f"<li>{svg.key(style)}{escape(system.name)}</li>" for style, system in enumerate(report.systems))
    return f'<ul class="legend">{items}</ul>'
