"""Quality against speed as one picture: an SVG file that needs nothing else, for a terminal's user, a README or a page.

It shows the levels that no other level beats, and every other engine that was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.storage.files import write_whole
from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.report.results import PeerReport, Report
from hmc.benchmark.report.svg import Axis, short

WIDTH = 540
HEIGHT = 360
LEFT = 64
RIGHT = 24
TOP = 62
BOTTOM = 52
"""Margins around the area of the axes."""
MARKER = 7
"""Half the side of a marker."""
NEAR = MARKER + 4
"""From the middle of a marker to its label, where that place is free; a line leads to a label that is further away."""
LETTER = 7.4
LINE = 15
"""Width of a letter and height of a line of a label, as large as any usual font has them."""
STYLE = """
.quality { font: 13px ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.quality .q-ground { fill: #fff; stroke: #d7deda; }
.quality text { fill: #56635f; font-size: 13px; stroke: none; }
.quality .q-title { fill: #16211e; font-size: 17px; font-weight: 600; }
.quality .q-label { fill: #16211e; font-weight: 600; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
.quality .q-note { fill: #33413d; paint-order: stroke; stroke: #fff; stroke-width: 4px; }
.quality .q-grid { stroke: #e9edeb; fill: none; }
.quality .q-lead { stroke: #97a39f; fill: none; }
.quality .q-edge { stroke: #0f6b5a; stroke-width: 2; fill: none; opacity: .55; }
.quality .q-level { fill: #0f6b5a; stroke: #fff; stroke-width: 1.5; }
.quality .q-peer { fill: #c04e00; stroke: #fff; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  .quality .q-ground { fill: #171f1d; stroke: #2f3b38; }
  .quality text { fill: #a3b2ad; }
  .quality .q-title { fill: #e5ece9; }
  .quality .q-label { fill: #e5ece9; stroke: #171f1d; }
  .quality .q-note { fill: #cfd8d5; stroke: #171f1d; }
  .quality .q-grid { stroke: #2a3431; }
  .quality .q-edge { stroke: #58c4aa; }
  .quality .q-level { fill: #58c4aa; stroke: #171f1d; }
  .quality .q-peer { fill: #f4915c; stroke: #171f1d; }
}
"""
"""Class names begin with q-, because a page that holds the picture has a style of its own."""


@dataclass(frozen=True)
class Point:
    """A level or another engine."""

    name: str
    speed: float
    """How many times as fast as the system that the axis names."""
    bleu: float
    note: str
    """The second line of the label."""
    peer: bool = False


def points(report: Report, setting: RequestSize | None = None, *, recorded: bool = False) -> list[Point]:
    """All levels and engines at a size of request; None: the headline setting. Speeds are relative to `base_of`.

    recorded: shows recorded BLEU, not what this report measured. Raises InvalidRequestError for a report without BLEU.
    """
    setting = setting or report.conditions.headline
    systems = {system.name: system for system in report.systems}
    base = systems[base_of(report)].latency_at(setting).ratio
    points = []
    for system in report.systems:
        quality = system.recorded if recorded else system.quality_at(setting.beam)
        if quality is None:
            raise InvalidRequestError("the picture shows BLEU against speed: measure with references")
        speed = base / system.latency_at(setting).ratio
        lost = f"{quality.bleu_delta:+.1f}".replace("-", "−")
        score = f"{quality.bleu:.1f} BLEU" if system.name == quality.reference_level else f"{lost} BLEU"
        points.append(Point(system.name, speed, quality.bleu, f"{speed:.1f}×, {score}", isinstance(system, PeerReport)))
    return points


def base_of(report: Report) -> str:
    """The system that speeds are relative to: the first other engine, else the reference level."""
    return report.peers[0].name if report.peers else report.conditions.latency_reference


def frontier(points: Sequence[Point]) -> list[Point]:
    """The levels that no other level beats in both BLEU and speed, fastest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.speed, -p.bleu)):
        if not point.peer and (not best or point.bleu > best[-1].bleu):
            best.append(point)
    return best


def picture(report: Report, setting: RequestSize | None = None, *, recorded: bool = False) -> str:
    """The picture of a report at a size of request; None: the headline setting. The same report gives the same text.

    recorded: as for `points`.
    """
    setting = setting or report.conditions.headline
    sentences = "One sentence" if setting.batch == 1 else f"{setting.batch} sentences"
    what = f"{sentences} a request, beam {setting.beam}"
    faster = f"times as fast as {base_of(report)}"
    scored = report.systems[0].recorded if recorded else None
    test_set = scored.test_set if scored else report.conditions.test_set
    return draw(points(report, setting, recorded=recorded), what, faster, f"BLEU, {test_set}")


def write_picture(report: Report, file: Path, *, recorded: bool = False) -> Path:
    """Writes the picture of the headline setting into a file. Returns its path. recorded: as for `points`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, picture(report, recorded=recorded) + "\n")
    return file


def draw(points: Sequence[Point], what: str, x_label: str, y_label: str) -> str:
    """SVG of the levels that no other one beats, joined by a line, and of the other engines.

    points: at least one level. what: what was timed. Levels that another one beats are left out.
    """
    levels = frontier(points)
    peers = [point for point in points if point.peer]
    shown = [*levels, *peers]
    highest = max(point.speed for point in shown)
    x = Axis(x_label, 0.0, 1.15 * highest)
    y = Axis.around(y_label, [point.bleu for point in shown])
    places = {point.name: _place(x, y, point) for point in shown}
    parts = [_axes(x, y)]
    if len(levels) > 1:
        corners = "L".join("{:.1f} {:.1f}".format(*places[point.name]) for point in levels)
        parts.append(f'<path class="q-edge" d="M{corners}"/>')
    parts += [_marker(point, *places[point.name]) for point in shown]
    parts += _labels(shown, places)
    said = "; ".join(f"{point.name}: {point.note}" for point in shown)
    return (
        f'<svg class="quality" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(f"{what}. {x_label}. {said}")}"><style>{STYLE}</style>'
        f'<rect class="q-ground" x=".5" y=".5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>'
        f'<text class="q-title" x="20" y="30">Quality against speed</text>'
        f'<text x="20" y="50">{escape(what)}. Up is better, right is faster.</text>{"".join(parts)}</svg>'
    )


def _place(x: Axis, y: Axis, point: Point) -> tuple[float, float]:
    across = LEFT + (WIDTH - LEFT - RIGHT) * x.share(point.speed)
    down = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y.share(point.bleu)
    return across, down


def _axes(x: Axis, y: Axis) -> str:
    """Grid, ticks and names of the axes."""
    parts = []
    for tick in x.ticks():
        across, _ = _place(x, y, Point("", tick, y.low, ""))
        parts.append(f'<path class="q-grid" d="M{across:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{short(tick)}×</text>')
    for tick in y.ticks():
        _, down = _place(x, y, Point("", x.low, tick, ""))
        parts.append(f'<path class="q-grid" d="M{LEFT} {down:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down + 4:.1f}" text-anchor="end">{short(tick)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" text-anchor="end">{escape(x.label)} →</text>')
    turned = f'<text text-anchor="middle" transform="translate(18 {middle}) rotate(-90)">'
    return "".join([*parts, turned, escape(y.label), " →</text>"])


def _marker(point: Point, across: float, down: float) -> str:
    if point.peer:
        size = MARKER + 1
        shape = f"M{across:.1f} {down - size:.1f}l{size} {size}l-{size} {size}l-{size} -{size}z"
        return f'<path class="q-peer" d="{shape}"/>'
    return f'<circle class="q-level" cx="{across:.1f}" cy="{down:.1f}" r="{MARKER}"/>'


@dataclass(frozen=True)
class Box:
    """The area of a marker or of a label."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )  # fmt: skip

    def inside(self) -> bool:
        """Whether it is within the area of the axes."""
        return (
            self.left >= LEFT and self.right <= WIDTH - 4 and self.top >= TOP - LINE and self.bottom <= HEIGHT - BOTTOM
        )


def _labels(shown: Sequence[Point], places: dict[str, tuple[float, float]]) -> list[str]:
    """Two lines beside each marker, where they cover no marker and no other label."""
    taken = [Box(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in places.values()]
    parts = []
    for point in sorted(shown, key=lambda p: p.speed):
        across, down = places[point.name]
        box, distance = _free(point, across, down, taken)
        taken.append(box)
        if distance > NEAR:
            end = min(max(across, box.left), box.right), min(max(down, box.top), box.bottom)
            parts.append(f'<path class="q-lead" d="M{across:.1f} {down:.1f}L{end[0]:.1f} {end[1]:.1f}"/>')
        label = f'<text class="q-label" x="{box.left:.1f}" y="{box.top + 12:.1f}">{escape(point.name)}</text>'
        note = f'<text class="q-note" x="{box.left:.1f}" y="{box.top + LINE + 12:.1f}">{escape(point.note)}</text>'
        parts.append(label + note)
    return parts


def _free(point: Point, across: float, down: float, taken: Sequence[Box]) -> tuple[Box, float]:
    """The nearest free place for a label, and its distance. It stands beside its marker, or further away."""
    width = LETTER * max(len(point.name), len(point.note))
    height = 2 * LINE
    for distance in range(NEAR, HEIGHT, LINE):
        for left, top in (
            (across + distance, down - height / 2),
            (across + distance, down - distance / 2 - height),
            (across - width / 2, down - distance - height),
            (across - width / 2, down + distance),
            (across - distance - width, down + distance),
            (across - distance - width, down - height / 2),
            (across + distance, down + distance),
            (across - distance - width, down - distance - height),
        ):
            box = Box(left, top, left + width, top + height)
            if box.inside() and not any(map(box.overlaps, taken)):
                return box, distance
    return Box(across + NEAR, down - LINE, across + NEAR + width, down + LINE), NEAR
