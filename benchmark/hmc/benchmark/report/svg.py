"""Charts as SVG inside a page: text in, text out. Colours are classes, so that the page's style has them.

A chart is 360 units wide, which is a phone's width: there it is drawn one to one, and its letters can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product

WIDTH = 360
HEIGHT = 250
LEFT = 46
RIGHT = 12
TOP = 10
BOTTOM = 38
"""Margins around the area of the axes."""
STYLES = 8
"""Colours that the page has; a ninth system gets the first again, with another marker."""
CELL = 11
"""Side of a head in a map of heads."""


@dataclass(frozen=True)
class ChartPoint:
    """A point, with the ends of its interval where it has one."""

    x: float
    y: float
    y_ends: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """The points of one system."""

    name: str
    style: int
    """Number of the system; colour and marker follow from it."""
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of positions."""

    label: str
    low: float
    high: float
    log: bool = False

    @classmethod
    def around(cls, label: str, values: Sequence[float], *, log: bool = False, zero: bool = False) -> Axis:
        """An axis that shows all values. zero: from 0 on."""
        low = min(values)
        high = max(values)
        if log:
            low = max(low, 1e-9)
            return cls(label, low / 1.15, max(high, low) * 1.15, log=True)
        if zero:
            low = 0.0
        room = 0.08 * (high - low) or abs(high) * 0.1 or 1.0
        return cls(label, low if zero else low - room, high + room)

    def share(self, value: float) -> float:
        """0 at the lower end, 1 at the upper one; values beyond an end are moved to that end."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """About four round values."""
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            digits: tuple[int, ...] = (1, 2, 3, 5, 7)
            if self.high / self.low > 1e3:
                digits = (1,)
            elif self.high / self.low > 20:
                digits = (1, 3)
            values = [digit * 10.0**decade for decade, digit in product(decades, digits)]
            return [value for value in values if self.low <= value <= self.high]
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Frame:
    """The area of a chart."""

    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Position of a point."""
        across = WIDTH - LEFT - RIGHT
        up = HEIGHT - TOP - BOTTOM
        return LEFT + across * self.x.share(x), HEIGHT - BOTTOM - up * self.y.share(y)

    def grid(self) -> str:
        """Lines, ticks and labels of both axes."""
        parts = []
        for tick in self.x.ticks():
            x, _ = self.at(tick, self.y.low)
            parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
            parts.append(_text(x, HEIGHT - BOTTOM + 14, short(tick), "middle"))
        for tick in self.y.ticks():
            _, y = self.at(self.x.low, tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_text(LEFT - 5, y + 4, short(tick), "end"))
        middle = (TOP + HEIGHT - BOTTOM) / 2
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x.label, "middle", "name"))
        turned = f'<text class="name" text-anchor="middle" transform="translate(11 {middle}) rotate(-90)">'
        return "".join([*parts, turned, escape(self.y.label), "</text>"])


def short(value: float) -> str:
    """A number with three significant digits at most."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def lines(
    series: Sequence[Series], x: Axis, y: Axis, description: str, *, rule: tuple[float, str] | None = None,
    diagonal: bool = False, marks: bool = True,
) -> str:  # fmt: skip
    """A line for each system. rule: a horizontal line and its name. diagonal: where y equals x."""
    frame = Frame(x, y)
    parts = []
    if rule is not None:
        _, down = frame.at(x.low, rule[0])
        parts.append(f'<path class="rule" d="M{LEFT} {down:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(WIDTH - RIGHT - 3, down - 4, rule[1], "end"))
    if diagonal:
        ends = [frame.at(end, end) for end in (max(x.low, y.low), min(x.high, y.high))]
        parts.append(f'<path class="rule" d="M{ends[0][0]:.1f} {ends[0][1]:.1f}L{ends[1][0]:.1f} {ends[1][1]:.1f}"/>')
    for curve in series:
        places = [frame.at(point.x, point.y) for point in curve.points]
        path = "L".join(f"{across:.1f} {down:.1f}" for across, down in places)
        parts.append(f'<path class="line c{curve.style % STYLES}" d="M{path}"/>')
        for point in curve.points:
            if point.y_ends:
                across = frame.at(point.x, point.y)[0]
                low, high = (frame.at(point.x, end)[1] for end in point.y_ends)
                parts.append(f'<path class="bar c{curve.style % STYLES}" d="M{across:.1f} {low:.1f}V{high:.1f}"/>')
        if marks:
            parts += [marker(curve.style, across, down) for across, down in places]
    return _svg(HEIGHT, frame.grid() + "".join(parts), description)


def bars(rows: Sequence[tuple[str, int, Sequence[tuple[float, str]]]], description: str) -> str:
    """A row for each system: name, style, and stacked parts, each a value and the text behind the last one."""
    lengths = []
    for _, _, parts in rows:
        lengths.append(sum(value for value, _ in parts))
    most = max(lengths) or 1.0
    drawn = []
    width = WIDTH - 2 * RIGHT - 62
    for number, (name, style, parts) in enumerate(rows):
        top = TOP + 40 * number
        across = float(RIGHT)
        drawn.append(_text(RIGHT, top + 8, name, "start", "label"))
        for part, (value, _) in enumerate(parts):
            long = width * value / most
            faint = " faint" if part else ""
            place = f'x="{across:.1f}" y="{top + 13}" width="{long:.1f}" height="15"'
            drawn.append(f'<rect class="c{style % STYLES}{faint}" {place}/>')
            across += long
        drawn.append(_text(across + 5, top + 25, parts[-1][1], "start"))
    return _svg(TOP + 40 * len(rows), "".join(drawn), description)


def head_map(rows: Sequence[Sequence[int]], heads: int, description: str) -> str:
    """The heads of one kind: a row for each layer, the first on top. rows: numbers of the open heads, which are
    filled. It is drawn one to one."""
    parts = []
    for layer, kept in enumerate(rows):
        for head in range(heads):
            state = "head" if head in kept else "head closed"
            parts.append(
                f'<rect class="{state}" x="{head * CELL}" y="{layer * CELL}" width="{CELL - 2}" height="{CELL - 2}"/>'
            )
    width = heads * CELL
    height = max(1, len(rows)) * CELL
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(description)}">{"".join(parts)}</svg>'


def marker(style: int, x: float, y: float) -> str:
    """The marker of a system, around a point."""
    shapes = (
        f'<circle class="dot c{style % STYLES}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>',
        f'<rect class="dot c{style % STYLES}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>',
        f'<path class="dot c{style % STYLES}" d="M{x:.1f} {y - 5.5:.1f}l5 9h-10z"/>',
        f'<path class="dot c{style % STYLES}" d="M{x:.1f} {y - 6:.1f}l5.5 6l-5.5 6l-5.5 -6z"/>',
        f'<path class="dot c{style % STYLES}" d="M{x:.1f} {y + 5.5:.1f}l5 -9h-10z"/>',
    )
    return shapes[style % len(shapes)]


def key(style: int) -> str:
    """The marker alone, for a line of text."""
    return f'<svg class="key" viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">{marker(style, 7, 7)}</svg>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, body: str, description: str) -> str:
    said = escape(description)
    return f'<svg class="chart" viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{said}">{body}</svg>'
