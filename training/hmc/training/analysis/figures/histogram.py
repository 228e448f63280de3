"""How head importance is spread: a histogram of I_h, systems over each other (Sun et al. 2021, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hmc.training.analysis.figures.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 20


def draw_histogram(axes: Axes, systems: Mapping[str, Sequence[float]]) -> None:
    """Heads per bin of I_h; every system in the same bins."""
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
