"""Charts inside a figure: curves and bars of loss or BLEU with their intervals, histograms of importance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc.training.analysis.common.curves import ORDERS
from hmc.training.analysis.figures.style import COLOURS, GREY, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC_TITLES = {"bleu": "BLEU", "loss": "loss [nats per token]"}
BINS = 20
"""Bins of a histogram."""
LINES = dict(zip(ORDERS, ("--", "-"), strict=True))
ORDER_TITLES = dict(zip(ORDERS, ("most important first", "least important first"), strict=True))


def cumulative_curves(axes: Axes, systems: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    """Both curves of every system with 95 % bands. One system: a colour per order. Several: a colour per system."""
    several = len(systems) > 1
    for number, (name, data) in enumerate(systems.items()):
        for place, order in enumerate(ORDERS):
            curve = data["curves"][order]
            style = (number if several else place) % len(COLOURS)
            x = np.array([point["masked"] for point in curve])
            value, low, high = (
                np.array([point[metric][key] for point in curve], float) for key in ("value", "low", "high")
            )
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
    axes.legend(frameon=False, fontsize=8)


def group_bars(axes: Axes, systems: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    """One bar per group and system with its interval, and a line at each system's score with every head open."""
    width = 0.8 / len(systems)
    floor = []
    for number, (name, data) in enumerate(systems.items()):
        colour = COLOURS[number % len(COLOURS)]
        x = np.arange(len(data["groups"])) + (number - (len(systems) - 1) / 2) * width
        value = [group[metric]["value"] for group in data["groups"]]
        bars = error_bars([group[metric] for group in data["groups"]])
        axes.bar(x, value, width * 0.92, color=colour, label=name, zorder=2)
        axes.errorbar(x, value, yerr=bars, fmt="none", ecolor="black", elinewidth=0.8, capsize=2, zorder=3)
        axes.axhline(data["full"][metric]["value"], color=colour, linestyle=":", linewidth=1.2, zorder=1)
        floor += [group[metric]["low"] for group in data["groups"]]
    groups = next(iter(systems.values()))["groups"]
    axes.set_xticks(np.arange(len(groups)), [f"{group['first']}–{group['last']}" for group in groups])
    axes.set_xlabel("heads masked, by rank of importance (dotted: none masked)")
    axes.set_ylabel(METRIC_TITLES[metric])
    axes.set_ylim(bottom=0)
    if len(systems) > 1:
        axes.legend(frameon=False)


def error_bars(estimates: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Distances from value to low and to high, as matplotlib takes them; 0 where the value is outside its interval."""
    return [
        [max(0.0, e["value"] - e["low"]) for e in estimates],
        [max(0.0, e["high"] - e["value"]) for e in estimates],
    ]


def zero_line(axes: Axes) -> None:
    """A thin line at zero."""
    axes.axhline(0.0, color=GREY, linewidth=0.8, zorder=1)


def histogram(axes: Axes, systems: Mapping[str, Sequence[float]]) -> None:
    """Number of heads per bin of I_h, with the same bins for every system (Sun et al. 2021, figure 3)."""
    highest = max(max(values) for values in systems.values()) or 1.0
    edges = np.linspace(0.0, highest, BINS + 1)
    for colour, (name, values) in zip(_cycle(len(systems)), systems.items(), strict=True):
        heights, _ = np.histogram(values, edges)
        axes.stairs(heights, edges, color=colour, linewidth=1.6, label=name)
        axes.axvline(float(np.mean(values)), color=colour, linestyle=":", linewidth=1.2)
    axes.set_xlabel("importance I_h (dotted: mean)")
    axes.set_ylabel("heads")
    axes.set_xlim(0.0, highest)
    if len(systems) > 1:
        axes.legend(frameon=False)


def _cycle(count: int) -> list[str]:
    return [COLOURS[n % len(COLOURS)] for n in range(count)]
