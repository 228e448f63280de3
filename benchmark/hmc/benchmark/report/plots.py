"""The Pareto plot: BLEU against speed-up, a panel for each batch size, a point for each level and each peer. Only this
file imports matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.artifact.storage.files import whole_file
from hmc.benchmark.measure.latency import RequestSize
from hmc.benchmark.report.results import LevelReport, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PEER = "another engine"
# The palette of Okabe and Ito, which colour-blind readers can distinguish. Shapes differ as well.
STYLES = {
    "fp32": ("#0072B2", "o"), "int8": ("#D55E00", "s"), "int4": ("#CC79A7", "^"), "fp16": ("#009E73", "D"),
    "bf16": ("#E69F00", "v"), PEER: ("#000000", "X"),
}  # fmt: skip
GREY = "#666666"
PANEL_INCHES, HEIGHT_INCHES = 5.5, 4.5
"""Width of a panel; height."""
LARGEST_AREA, SMALLEST_AREA, PEER_AREA = 420.0, 20.0, 80.0
"""Marker areas in square points."""
MARKER_PIXELS = 12
"""Half the side of the square around a marker in which no label is placed."""
OFFSETS = ((14, 0), (-14, 0), (12, 12), (-12, 12), (12, -12), (-12, -12), (12, 24), (12, -24))
"""Positions to try for a label, in points from its marker. The first free one is used."""


@dataclass(frozen=True)
class Point:
    """A level or a peer on the plot."""

    name: str
    precision: str
    """PEER for a peer."""
    p50_ms: float
    bleu: float
    bleu_low: float
    """BLEU of the reference level plus the lower end of the interval of the difference; `bleu_high`: the upper end."""
    bleu_high: float
    bytes: int
    """0 for a peer."""
    speedup: float = 1.0
    """How many times as fast as the reference level; median over the rounds."""


def points(report: Report, setting: RequestSize | None = None) -> list[Point]:
    """The levels and peers at a setting; None: the headline setting. Raises InvalidRequestError without quality."""
    setting, found = setting or report.conditions.headline, []
    for system in report.systems:
        quality = system.quality_at(setting.beam)
        if quality is None:
            raise InvalidRequestError("the plot shows BLEU against latency: give references with --reference FILE")
        base = quality.bleu - quality.bleu_delta
        low, high = base + quality.ci_low, base + quality.ci_high
        at = system.latency_at(setting)
        precision, size = (system.precision, system.bytes) if isinstance(system, LevelReport) else (PEER, 0)
        found.append(Point(system.name, precision, at.p50_ms, quality.bleu, low, high, size, 1 / at.ratio))
    return found


def frontier(found: Sequence[Point]) -> list[Point]:
    """The levels that no other level beats in both BLEU and speed-up, fastest first."""
    best: list[Point] = []
    for point in sorted(found, key=lambda p: (-p.speedup, -p.bleu)):
        if not best or point.bleu > best[-1].bleu:
            best.append(point)
    return best


def require_matplotlib() -> None:
    """Raises HmcError that says what to install. Call it before a long measurement."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise HmcError(f"plots need matplotlib: {how_to_install('plot')}") from error


def write_pareto(report: Report, prefix: Path) -> list[Path]:
    """Writes `prefix`.png and `prefix`.svg and returns their paths. The same report gives the same bytes."""
    require_matplotlib()
    from matplotlib import rc_context

    beam, reference = report.conditions.headline.beam, report.conditions.latency_reference
    panels = {setting: points(report, setting) for setting in (RequestSize(n, beam) for n in report.conditions.batches)}
    prefix.parent.mkdir(parents=True, exist_ok=True)
    paths = [prefix.with_name(f"{prefix.name}.{suffix}") for suffix in ("png", "svg")]
    with rc_context({"svg.hashsalt": "hmc", "font.family": "DejaVu Sans", "font.size": 10}):
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None}), strict=True):
            figure = _figure(report, len(panels))
            for axes, (setting, found) in zip(figure.axes, panels.items(), strict=True):
                _draw(axes, found)
                reference_ms = next(p.p50_ms for p in found if p.name == reference)
                axes.set_xlabel(f"times as fast as {reference}, which takes {reference_ms:.3g} ms ({setting})")
            _right_axis(report, figure.axes[-1])
            for axes, found in zip(figure.axes, panels.values(), strict=True):
                _label(figure, axes, found)
            with whole_file(path) as file:
                figure.savefig(file, format=path.suffix[1:], metadata=metadata)
    return paths


def _figure(report: Report, panels: int) -> Figure:
    """An empty figure with panels side by side, which share their y axis: BLEU."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    conditions = report.conditions
    figure = Figure(figsize=(PANEL_INCHES * panels + 1.5, HEIGHT_INCHES), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    first = figure.subplots(1, panels, sharey=True, squeeze=False)[0][0]
    first.set_ylabel(f"BLEU on {conditions.test_set}")
    title = f"Area: bytes on disk of a level. Bars: 95 % of ΔBLEU against {conditions.quality_reference}"
    figure.suptitle(title, fontsize=9)
    return figure


def _right_axis(report: Report, axes: Axes) -> None:
    """Shows ΔBLEU at the right side of the last panel."""
    reference = report.conditions.quality_reference
    base = next(point.bleu for point in points(report) if point.name == reference)
    right = axes.secondary_yaxis(
        "right", functions=(lambda bleu: np.asarray(bleu) - base, lambda delta: np.asarray(delta) + base)
    )
    right.set_ylabel(f"ΔBLEU against {reference}")


def _draw(axes: Axes, found: Sequence[Point]) -> None:
    """Draws the levels of one setting and the line through those that no other beats."""
    edge = frontier([point for point in found if point.precision != PEER])
    axes.plot([p.speedup for p in edge], [p.bleu for p in edge], color=GREY, linewidth=1, linestyle=":", zorder=1)
    largest = max(point.bytes for point in found)
    for precision, (colour, marker) in STYLES.items():
        these = [point for point in found if point.precision == precision]
        if not these:
            continue
        for p in these:
            if p.bleu_low < p.bleu_high:
                bar = [[max(0.0, p.bleu - p.bleu_low)], [max(0.0, p.bleu_high - p.bleu)]]
                axes.errorbar(p.speedup, p.bleu, yerr=bar, ecolor=colour, elinewidth=1.2, capsize=3, zorder=2)
        x, y = [p.speedup for p in these], [p.bleu for p in these]
        areas = [max(SMALLEST_AREA, LARGEST_AREA * p.bytes / largest) if p.bytes else PEER_AREA for p in these]
        axes.scatter(x, y, s=areas, c=colour, marker=marker, alpha=0.85, edgecolors="white", zorder=3)
        axes.scatter([], [], s=60, c=colour, marker=marker, label=precision)
    axes.margins(0.15, 0.2)
    axes.grid(alpha=0.25)
    axes.legend(loc="best", frameon=False)


def _label(figure: Figure, axes: Axes, found: Sequence[Point]) -> None:
    """Writes the name of each level within the axes, where it covers no other name and no marker."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    frame = axes.get_window_extent()
    centres = axes.transData.transform([(point.speedup, point.bleu) for point in found])
    taken = [Bbox([centre - MARKER_PIXELS, centre + MARKER_PIXELS]) for centre in centres]
    for point in sorted(found, key=lambda p: p.p50_ms):
        text = axes.annotate(
            point.name,
            (point.speedup, point.bleu),
            xytext=OFFSETS[0],
            textcoords="offset points",
            va="center",
            fontsize=9,
            zorder=4,
        )
        for offset in OFFSETS:
            text.set_position(offset)
            text.set_horizontalalignment("left" if offset[0] > 0 else "right")
            box = text.get_window_extent()
            if frame.contains(box.x1, box.y1) and not any(box.overlaps(other) for other in taken):
                break
        taken.append(text.get_window_extent())
