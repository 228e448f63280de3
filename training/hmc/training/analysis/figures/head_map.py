"""Maps of values of all heads: one map per kind, layers from the bottom up, closed heads hatched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.common.per_head import HeadTable
from hmc.training.analysis.figures.style import DIVERGING, GREY, KIND_TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

CELL = 0.34
"""Inches per head."""
ACROSS = 8
"""With at most this many heads per layer the maps of the three kinds are side by side, else one below the other."""


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
    heads = max(len(row) for kind in KINDS for row in table[kind])
    layers = max(len(table[kind]) for kind in KINDS)
    wide, high = CELL * heads + 0.5, CELL * layers + 0.6
    if heads <= ACROSS:
        return 3 * wide + 1.2, panels * max(1.6, high)
    return panels * (wide + 0.3), 3 * high + 0.9


def draw_head_maps(figure: Figure, panels: Sequence[Panel]) -> None:
    """Draws the panels. A panel is a row of three maps, or a column if layers have many heads (see ACROSS)."""
    across = len(panels[0].table[KINDS[0]][0]) <= ACROSS
    grid = figure.subplots(*((len(panels), len(KINDS)) if across else (len(KINDS), len(panels))), squeeze=False)
    for number, panel in enumerate(panels):
        scale = _scale(panel)
        cells: list[Axes] = [grid[number][n] if across else grid[n][number] for n in range(len(KINDS))]
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

    values = [
        value
        for kind in KINDS
        for row in panel.table[kind]
        for value in row
        if value is not None and np.isfinite(value)
    ]
    if panel.colours.startswith(DIVERGING):
        reach = max((abs(value) for value in values), default=0.0) or 1.0
        return Normalize(-reach, reach)
    return Normalize(min(0.0, *values), max(values) or 1.0) if values else Normalize(0.0, 1.0)


def _draw(axes: Axes, rows: Sequence[Sequence[float | None]], scale: Normalize, colours: str) -> QuadMesh:
    from matplotlib.patches import Rectangle

    layers, heads = len(rows), len(rows[0])
    values = np.ma.masked_invalid([[np.nan if value is None else value for value in row] for row in rows])
    mesh = axes.pcolormesh(
        np.arange(heads + 1), np.arange(layers + 1), values, norm=scale, cmap=colours, edgecolors="white"
    )
    for layer, row in enumerate(rows):
        for head, value in enumerate(row):
            if value is None:
                axes.add_patch(Rectangle((head, layer), 1, 1, fill=False, hatch="////", edgecolor=GREY, linewidth=0.3))
    axes.set_aspect("equal")
    axes.set_xticks(np.arange(heads) + 0.5, [str(head) for head in range(heads)])
    axes.set_yticks(np.arange(layers) + 0.5, [str(layer) for layer in range(layers)])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return mesh
