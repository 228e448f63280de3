"""Curves and bars of loss or BLEU with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hmc.training.analysis.cumulative import ORDERS
from hmc.training.analysis.figures.style import COLOURS, GREY, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRIC_TITLES = {"bleu": "BLEU", "loss": "loss [nats per token]"}
LINES = dict(zip(ORDERS, ("--", "-"), strict=True))
ORDER_TITLES = dict(zip(ORDERS, ("most important first", "least important first"), strict=True))


def draw_cumulative(axes: Axes, systems: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    """Both curves of every system with 95 % bands. One system: a colour an order; several: a colour a system."""
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


def draw_groups(axes: Axes, systems: Mapping[str, Mapping[str, Any]], metric: str) -> None:
    """A bar a group and system with its interval; a line at each system's score with every head open."""
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
    """Distances from value to low and to high, as matplotlib wants them; percentiles may leave the value outside."""
    return [
        [max(0.0, e["value"] - e["low"]) for e in estimates],
        [max(0.0, e["high"] - e["value"]) for e in estimates],
    ]


def zero_line(axes: Axes) -> None:
    """A thin line at zero."""
    axes.axhline(0.0, color=GREY, linewidth=0.8, zorder=1)
