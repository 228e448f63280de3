"""Figures of pruning: remaining heads by kind and layer, BLEU against open heads, gates over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.across.trajectory import QUANTITIES, quantities, stages
from hmc.training.analysis.common.records import (
    BudgetsData,
    GatePoint,
    MeanAndRange,
    SeriesPoint,
    SurvivorsData,
    TrajectoryData,
)
from hmc.training.analysis.common.result import Result
from hmc.training.analysis.figures.charts import (
    COLOURS,
    GREY,
    KIND_TITLES,
    MARKERS,
    METRIC_TITLES,
    SEQUENTIAL,
    figure,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXPECTED = {
    "heads": "expected open heads",
    "neurons": "expected open neurons",
    "latency_ms": "expected latency [ms]",
}
"""What a trajectory may show → the title of its axis."""
BAND = 0.18
"""Opacity of the band between least and most."""


@dataclass(frozen=True)
class Curve:
    """Label, colour and marker of a line."""

    label: str
    colour: str
    marker: str


def draw_survivors(result: Result[SurvivorsData], folder: Path) -> list[Path]:
    """`survivors`: open heads by kind, and by layer of each kind, from the whole model to the smallest budget."""
    data = result.data
    width = data.heads_per_layer
    heads = [width * sum(data.layers.values()), *(max(1, budget.heads) for budget in data.budgets)]
    with figure(7.5, 5.4) as drawn:
        grid = drawn.subplots(2, 2).ravel()
        for number, kind in enumerate(KINDS):
            layers = data.layers[kind]
            line = Curve(KIND_TITLES[kind], COLOURS[number], MARKERS[number])
            _ranges(grid[0], heads, width * layers, [budget.kinds[kind] for budget in data.budgets], line)
            for layer, line in enumerate(_layer_lines(layers)):
                _ranges(grid[number + 1], heads, width, [budget.layers[kind][layer] for budget in data.budgets], line)
            grid[number + 1].set_title(f"{KIND_TITLES[kind]}, by layer", fontsize=9)
        grid[0].set_title("by kind", fontsize=9)
        for axes in grid:
            _falling_heads(axes, heads, gap=0.35)
            axes.set_ylabel("open heads")
            axes.set_ylim(bottom=0)
            axes.yaxis.get_major_locator().set_params(integer=True)
            axes.legend(framealpha=0.8, edgecolor="none", fontsize=8)  # lines may pass below it
        return save_figure(drawn, folder / "survivors")


def _layer_lines(layers: int) -> list[Curve]:
    """One style per layer, from dark (first) to light (last), in colours that no kind has."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = colormaps[SEQUENTIAL](np.linspace(0.0, 0.85, layers))
    return [Curve(f"layer {n}", to_hex(shade), MARKERS[n % len(MARKERS)]) for n, shade in enumerate(shades)]


def _ranges(axes: Axes, heads: Sequence[int], whole: int, ranges: Sequence[MeanAndRange], line: Curve) -> None:
    """A line of means with a band from least to most. Its first point is the whole model."""
    first = MeanAndRange(mean=whole, least=whole, most=whole)
    mean, least, most = _columns([first, *ranges])
    axes.fill_between(heads, least, most, color=line.colour, alpha=BAND, linewidth=0)
    axes.plot(heads, mean, color=line.colour, marker=line.marker, markersize=4, linewidth=1.4, label=line.label)


def _columns(ranges: Sequence[MeanAndRange]) -> npt.NDArray[np.float64]:
    """Means, least and most values: `[3, N]`."""
    return np.array([(one.mean, one.least, one.most) for one in ranges]).reshape(-1, 3).T


def _falling_heads(axes: Axes, heads: Sequence[int], gap: float = 0.2) -> None:
    """Logarithmic axis of open heads, from many to few, with a tick at each number. Labels are `gap` octaves apart."""
    from matplotlib.ticker import NullFormatter, NullLocator

    ticks = sorted(heads, reverse=True)
    labels = []
    last = np.inf
    for number in ticks:
        apart = np.log2(last / number) >= gap
        labels.append(str(number) if apart else "")
        last = number if apart else last
    axes.set_xscale("log", base=2)
    axes.set_xlim(ticks[0] * 1.08, ticks[-1] / 1.08)
    axes.set_xticks(ticks, labels)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("open heads in all")
    axes.grid(alpha=0.25)


def draw_budgets(result: Result[BudgetsData], folder: Path) -> list[Path]:
    """`budgets`: one line per series. Bars are intervals of single levels, bands the range of several levels."""
    every = set[int]()
    with figure(6.5, 4.2) as drawn:
        axes = drawn.add_subplot()
        for number, (name, series) in enumerate(result.data.series.items()):
            points = [point for point in series.points if point.heads]
            heads = [point.heads for point in points]
            every.update(heads)
            mean, least, most = _columns([point.bleu for point in points])
            colour = COLOURS[number % len(COLOURS)]
            marker = MARKERS[number % len(MARKERS)]
            axes.fill_between(heads, least, most, color=colour, alpha=BAND, linewidth=0)
            axes.plot(heads, mean, color=colour, marker=marker, markersize=5, linewidth=1.4, label=name)
            for point in points:
                _interval(axes, point, series.reference_level, colour)
        _falling_heads(axes, sorted(every))
        axes.set_ylabel(METRIC_TITLES["bleu"])
        axes.legend(frameon=False, fontsize=8)
        return save_figure(drawn, folder / "budgets")


def _interval(axes: Axes, point: SeriesPoint, reference: str, colour: str) -> None:
    """The interval of a single level's difference to the reference level, drawn around the level's BLEU."""
    level = point.levels[0]
    if len(point.levels) > 1 or level.name == reference:
        return
    base = level.bleu - level.bleu_delta
    axes.vlines(point.heads, base + level.ci_low, base + level.ci_high, color=colour, linewidth=1.0, alpha=0.6)


def draw_trajectory(result: Result[TrajectoryData], folder: Path) -> list[Path]:
    """`trajectory`: the expected heads, neurons and latency, as far as a run has them, with the budget of each; at the
    bottom the number of undecided gates."""
    runs = list(result.data.runs.values())
    shown = quantities(runs)
    with figure(6.5, 2.0 + 3.0 * len(shown)) as drawn:
        *above, below = drawn.subplots(len(shown) + 1, 1, sharex=True, height_ratios=[3] * len(shown) + [1])
        for number, run in enumerate(runs):
            for axes, name in zip(above, shown, strict=True):
                _run(axes, run.points, name, first=not number)
            for name in shown:
                if field := QUANTITIES[name][2]:
                    style = ":" if name == "neurons" else "-"
                    _line(below, run.points, field, color="black", linestyle=style, label="" if number else name)
        for axes, name in zip(above, shown, strict=True):
            axes.set_ylabel(EXPECTED[name])
            axes.legend(frameon=False, fontsize=8)
        for axes in (*above, below):
            axes.grid(alpha=0.25)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
        if len(below.get_legend_handles_labels()[1]) > 1:
            below.legend(frameon=False, fontsize=8)
        below.set_ylabel("gates not settled")
        below.set_xlabel("update of a closing stage" + (f" ({len(runs)} runs)" if len(runs) > 1 else ""))
        for stage in stages(runs[0].points)[:-1]:
            for axes in (*above, below):
                axes.axvline(stage[-1].update, color=GREY, linewidth=0.6)
        return save_figure(drawn, folder / "trajectory")


def _run(axes: Axes, points: Sequence[GatePoint], name: str, *, first: bool) -> None:
    """The lines of a run for one quantity. Only the first run has labels and a budget."""
    kept, budget, _ = QUANTITIES[name]
    for number, kind in enumerate(KINDS if name == "heads" else ()):
        marked = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 3}
        _line(axes, points, f"kinds.{kind}", label=KIND_TITLES[kind] if first else "", **marked)
    _line(axes, points, kept, color="black", linewidth=1.4, label="all" if first else "")
    if first:
        _line(axes, points, budget, color=GREY, linestyle=":", label="budget")


def _line(axes: Axes, points: Sequence[GatePoint], field: str, *, label: str, **style: Any) -> None:
    """The field over the updates, where a point has it; no line where none has. field: `kinds.KIND` for a kind."""
    name, _, kind = field.partition(".")
    values = [getattr(point, name) for point in points]
    if kind:
        values = [by_kind[kind] for by_kind in values]
    numbers = np.array(values, float)  # None is NaN then
    if not np.isnan(numbers).all():
        axes.plot([point.update for point in points], numbers, label=label or None, **{"linewidth": 1.2} | style)
