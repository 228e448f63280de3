"""Parts of all figures: their style and files, curves and bars with intervals, histograms, maps of all heads.

The bytes of the SVG and PNG files depend on the data alone. No display is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hmc.artifact.model.heads import KINDS
from hmc.artifact.significance import Estimate
from hmc.artifact.storage.files import whole_file
from hmc.training.analysis.common.records import ORDERS, CumulativeData, GroupsData
from hmc.training.analysis.common.result import HeadTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Palette of Okabe and Ito, whose colours colour-blind readers can distinguish."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
"""One marker per colour, so that lines differ without colour too."""
GREY = "#666666"
SEQUENTIAL = "cividis"
DIVERGING = "PuOr"
"""Colour maps that stay readable for colour-blind readers and, the first, in grey."""
KIND_TITLES = {"encoder_self": "encoder self", "decoder_self": "decoder self", "cross": "cross"}
METRIC_TITLES = {"bleu": "BLEU", "loss": "loss [nats per token]"}
BINS = 20
"""Bins of a histogram."""
LINES = dict(zip(ORDERS, ("--", "-"), strict=True))
ORDER_TITLES = dict(zip(ORDERS, ("most important first", "least important first"), strict=True))
CELL = 0.34
"""Inches per head."""
ACROSS = 8
"""With at most this many heads per layer the maps of the three kinds are side by side, else one below the other."""


@contextmanager
def figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure, sizes in inches. HMC's style applies inside the `with` block."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(
        {
            "svg.hashsalt": "hmc",
            "svg.fonttype": "path",
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "hatch.linewidth": 0.6,
        }
    ):
        drawing = Figure(figsize=(width, height), dpi=150, layout="constrained")
        drawing.get_layout_engine().set(h_pad=0.08)  # type: ignore[union-attr, call-arg]
        FigureCanvasAgg(drawing)
        yield drawing


def save_figure(drawn: Figure, prefix: Path) -> list[Path]:
    """Writes `prefix`.svg and `prefix`.png, which contain no date and no version. Call it inside `figure`."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        path = prefix.with_name(f"{prefix.name}.{suffix}")
        with whole_file(path) as file:
            drawn.savefig(file, format=suffix, metadata=metadata)
        written.append(path)
    return written


def cumulative_curves(axes: Axes, systems: Mapping[str, CumulativeData], metric: str) -> None:
    """Both curves of every system with 95 % bands. One system: a colour per order. Several: a colour per system."""
    several = len(systems) > 1
    for number, (name, data) in enumerate(systems.items()):
        for place, order in enumerate(ORDERS):
            curve = data.curves[order]
            style = (number if several else place) % len(COLOURS)
            x = np.array([point.masked for point in curve])
            scores = [point.metric(metric) for point in curve]
            value, low, high = np.array([(score.value, score.low, score.high) for score in scores]).T
            label = f"{name}, {ORDER_TITLES[order]}" if several else ORDER_TITLES[order]
            axes.fill_between(x, low, high, color=COLOURS[style], alpha=0.15, linewidth=0)
            axes.plot(
                x,
                value,
                LINES[order],
                color=COLOURS[style],
                marker=MARKERS[style],
                markersize=4,
                linewidth=1.4,
                label=label,
            )
    axes.set_xlabel("heads masked (bands: 95 % over sentences)")
    axes.set_ylabel(METRIC_TITLES[metric])
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))


def group_bars(axes: Axes, systems: Mapping[str, GroupsData], metric: str) -> None:
    """One bar per group and system with its interval, and a line at each system's score with every head open."""
    width = 0.8 / len(systems)
    for number, (name, data) in enumerate(systems.items()):
        colour = COLOURS[number % len(COLOURS)]
        x = np.arange(len(data.groups)) + (number - (len(systems) - 1) / 2) * width
        scores = [group.metric(metric) for group in data.groups]
        value = [score.value for score in scores]
        bars = error_bars(scores)
        axes.bar(x, value, width * 0.92, color=colour, label=name, zorder=2)
        axes.errorbar(x, value, yerr=bars, fmt="none", ecolor="black", elinewidth=0.8, capsize=2, zorder=3)
        axes.axhline(data.full.metric(metric).value, color=colour, linestyle=":", linewidth=1.2, zorder=1)
    groups = next(iter(systems.values())).groups
    axes.set_xticks(np.arange(len(groups)), [group.ranks for group in groups])
    axes.set_xlabel("heads masked, by rank of importance (dotted: none masked)")
    axes.set_ylabel(METRIC_TITLES[metric])
    axes.set_ylim(bottom=0)
    if len(systems) > 1:
        axes.legend(frameon=False, ncols=len(systems), loc="lower left", bbox_to_anchor=(0, 1))


def error_bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Distances from value to low and to high, as matplotlib takes them; 0 where the value is outside its interval."""
    below = [max(0.0, estimate.value - estimate.low) for estimate in estimates]
    above = [max(0.0, estimate.high - estimate.value) for estimate in estimates]
    return [below, above]


def zero_line(axes: Axes) -> None:
    """A thin line at zero."""
    axes.axhline(0.0, color=GREY, linewidth=0.8, zorder=1)


def histogram(axes: Axes, systems: Mapping[str, Sequence[float]]) -> None:
    """Number of heads per bin of I_h, with the same bins for every system (Sun et al. 2021, figure 3)."""
    lowest = min(0.0, *map(min, systems.values()))
    highest = max(0.0, *map(max, systems.values()))
    highest = highest if highest > lowest else 1.0
    edges = np.linspace(lowest, highest, BINS + 1)
    for colour, (name, values) in zip(cycle(COLOURS), systems.items(), strict=False):
        heights, _ = np.histogram(values, edges)
        axes.stairs(heights, edges, color=colour, linewidth=1.6, label=name)
        axes.axvline(float(np.mean(values)), color=colour, linestyle=":", linewidth=1.2)
    axes.set_xlabel("importance I_h (dotted: mean)")
    axes.set_ylabel("heads")
    axes.set_xlim(lowest, highest)
    if len(systems) > 1:
        axes.legend(frameon=False)


@dataclass(frozen=True)
class Panel:
    """Three maps that share one colour scale."""

    label: str
    table: HeadTable
    """None is a closed head, drawn hatched; NaN is a head without a value, left blank."""
    colours: str
    """Name of a colour map. A DIVERGING one is centred on zero."""


def map_size(table: HeadTable, panels: int) -> tuple[float, float]:
    """Width and height in inches of the maps of `panels` panels."""
    heads = len(table[KINDS[0]][0])
    layers = max(len(table[kind]) for kind in KINDS)
    wide = CELL * heads + 0.5
    high = CELL * layers + 0.6
    if heads <= ACROSS:
        return 3 * wide + 1.2, panels * max(1.6, high)
    return panels * (wide + 0.3), 3 * high + 0.9


def draw_head_maps(figure: Figure, panels: Sequence[Panel]) -> None:
    """Draws the panels. A panel is a row of three maps, or a column if layers have many heads (see ACROSS)."""
    across = len(panels[0].table[KINDS[0]][0]) <= ACROSS
    rows = len(panels) if across else len(KINDS)
    columns = len(KINDS) if across else len(panels)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, panel in enumerate(panels):
        scale = _scale(panel)
        cells: list[Axes] = list(grid[number] if across else grid[:, number])
        meshes = [_draw(axes, panel.table[kind], scale, panel.colours) for axes, kind in zip(cells, KINDS, strict=True)]
        for axes, kind in zip(cells, KINDS, strict=True):
            if not across or number == 0:
                axes.set_title(KIND_TITLES[kind], fontsize=9)
        figure.colorbar(meshes[0], ax=cells, label=panel.label, location="right" if across else "bottom", pad=0.02)
    for axes in grid[-1]:
        axes.set_xlabel("head")
    for axes in grid[:, 0]:
        axes.set_ylabel("layer")


def _scale(panel: Panel) -> Normalize:
    from matplotlib.colors import Normalize

    rows = chain.from_iterable(panel.table[kind] for kind in KINDS)
    values = np.array(list(chain.from_iterable(rows)), float)  # None is NaN then
    values = values[np.isfinite(values)]
    if panel.colours.startswith(DIVERGING):
        reach = float(np.abs(values).max(initial=0.0)) or 1.0
        return Normalize(-reach, reach)
    if not len(values):
        return Normalize(0.0, 1.0)
    return Normalize(min(0.0, float(values.min())), float(values.max()) or 1.0)


def _draw(axes: Axes, rows: Sequence[Sequence[float | None]], scale: Normalize, colours: str) -> QuadMesh:
    from matplotlib.patches import Rectangle

    layers = len(rows)
    heads = len(rows[0])
    values = np.ma.masked_invalid(np.array(rows, float))  # None is NaN then
    mesh = axes.pcolormesh(
        np.arange(heads + 1), np.arange(layers + 1), values, norm=scale, cmap=colours, edgecolors="white"
    )
    for layer, row in enumerate(rows):
        for head, value in enumerate(row):
            if value is None:
                axes.add_patch(Rectangle((head, layer), 1, 1, fill=False, hatch="////", edgecolor=GREY, linewidth=0.3))
    axes.set_aspect("equal")
    axes.set_xticks(np.arange(heads) + 0.5, list(map(str, range(heads))))
    axes.set_yticks(np.arange(layers) + 0.5, list(map(str, range(layers))))
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return mesh
