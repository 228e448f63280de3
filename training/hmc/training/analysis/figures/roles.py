"""Figures of what heads attend to: maps of confidence, relevance and roles, and attention maps of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hmc.artifact.model.heads import KINDS, Head
from hmc.training.analysis.common.records import ConfidenceData, MapsData, RelevanceData, Role, RolesData
from hmc.training.analysis.common.result import HeadTable, Result, table_of
from hmc.training.analysis.figures.charts import (
    COLOURS,
    GREY,
    KIND_TITLES,
    SEQUENTIAL,
    Panel,
    draw_head_maps,
    figure,
    map_size,
    save_figure,
)
from hmc.training.analysis.roles.roles import role_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 0.46
"""Inches per head in the map of roles; a label fits in."""
MAP_COLUMNS = 4
"""Attention maps per row of the figure."""
ROLE_COLOURS = {"positional": COLOURS[3], "syntactic": COLOURS[2], "rare words": COLOURS[4]}
NO_ROLE = "#E4E4E4"


def draw_confidence(result: Result[ConfidenceData], folder: Path) -> list[Path]:
    """`confidence`: the head map."""
    table = table_of(result.data, result.data.heads, lambda row: row.confidence)
    return _map(table, "mean largest weight", folder / "confidence")


def draw_lrp(result: Result[RelevanceData], folder: Path) -> list[Path]:
    """`lrp`: the head map. The values of a layer sum to 1."""
    table = table_of(result.data, result.data.heads, lambda row: row.relevance)
    return _map(table, "relevance", folder / "lrp")


def _map(table: HeadTable, label: str, prefix: Path) -> list[Path]:
    with figure(*map_size(table, 1)) as drawn:
        draw_head_maps(drawn, [Panel(label, table, SEQUENTIAL)])
        return save_figure(drawn, prefix)


def draw_roles(result: Result[RolesData], folder: Path) -> list[Path]:
    """`roles`: every head coloured and labelled by its role. A head with several roles has a band for each."""
    from matplotlib.patches import Patch

    heads = result.data.heads_per_layer
    layout = result.data.layout
    roles = {row.head: row.roles for row in result.data.heads}
    layers = [len(layout[kind]) for kind in KINDS]
    with figure(max(6.5, CELL * heads + 1.0), CELL * sum(layers) + 0.6 * len(KINDS) + 0.5) as drawn:
        grid = drawn.subplots(len(KINDS), 1, height_ratios=layers)
        for axes, kind in zip(grid, KINDS, strict=True):
            _frame(axes, len(layout[kind]), heads)
            axes.set_title(KIND_TITLES[kind], fontsize=9)
            for layer in range(len(layout[kind])):
                for index in range(heads):
                    _role_cell(axes, layer, index, roles.get(Head(kind, layer, index)))
        grid[-1].set_xlabel("head")
        handles = [Patch(facecolor=colour, label=name) for name, colour in ROLE_COLOURS.items()]
        handles.append(Patch(facecolor=NO_ROLE, label="no role found"))
        handles.append(Patch(facecolor="white", edgecolor=GREY, hatch="////", label="closed"))
        drawn.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
        return save_figure(drawn, folder / "roles")


def _frame(axes: Axes, layers: int, heads: int) -> None:
    axes.set_xlim(0, heads)
    axes.set_ylim(0, layers)
    axes.set_aspect("equal")
    axes.set_xticks(np.arange(heads) + 0.5, list(map(str, range(heads))))
    axes.set_yticks(np.arange(layers) + 0.5, list(map(str, range(layers))))
    axes.set_ylabel("layer")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _role_cell(axes: Axes, layer: int, index: int, roles: Sequence[Role] | None) -> None:
    """roles: None for a closed head."""
    from matplotlib.patches import Rectangle

    if roles is None:
        axes.add_patch(Rectangle((index, layer), 1, 1, fill=False, hatch="////", edgecolor=GREY, linewidth=0.3))
        return
    height = 1 / max(1, len(roles))
    for band in range(max(1, len(roles))):
        colour = ROLE_COLOURS[roles[band].role] if roles else NO_ROLE
        # The first role is at the top of the cell.
        bottom = layer + 1 - (band + 1) * height
        axes.add_patch(Rectangle((index, bottom), 1, height, facecolor=colour, edgecolor="white", linewidth=0.8))
        if roles:
            size = 7 if len(roles) < 3 else 20 / (len(roles) + 1)
            at = (index + 0.5, bottom + height / 2)
            axes.text(*at, role_label(roles[band]), ha="center", va="center", fontsize=size)


def draw_attention(result: Result[MapsData], folder: Path) -> list[Path]:
    """`attention`: one map per head, with queries as rows and keys as columns."""
    maps = result.data.maps
    columns = min(MAP_COLUMNS, len(maps))
    rows = -(-len(maps) // columns)
    queries = max(len(one.queries) for one in maps)
    keys = max(len(one.keys) for one in maps)
    width = columns * (0.17 * keys + 1.0) + 0.8
    height = rows * (0.17 * queries + 1.1)
    with figure(max(5.0, width), max(3.0, height)) as drawn:
        grid = drawn.subplots(rows, columns, squeeze=False)
        for axes, one in zip(grid.flat, maps, strict=False):
            axes.imshow(np.array(one.weights), vmin=0, vmax=1, cmap=SEQUENTIAL)
            axes.set_xticks(range(len(one.keys)), one.keys, rotation=90, fontsize=6)
            axes.set_yticks(range(len(one.queries)), one.queries, fontsize=6)
            axes.tick_params(length=0)
            axes.set_title(str(one.head), fontsize=8)
        for axes in grid.flat[len(maps) :]:
            axes.set_visible(False)
        drawn.colorbar(grid.flat[0].images[0], ax=list(grid.flat), label="attention weight", shrink=0.4)
        return save_figure(drawn, folder / "attention")
