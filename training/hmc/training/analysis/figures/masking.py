"""Figures of the analyses that mask heads, of importance, and of results side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.model.heads import KINDS
from hmc.artifact.significance import Estimate
from hmc.training.analysis.common.records import (
    AblationData,
    AllButOneData,
    ComparisonData,
    CorrelationData,
    CumulativeData,
    GroupsData,
    ImportanceData,
    ProfileData,
)
from hmc.training.analysis.common.result import Result, table_of
from hmc.training.analysis.common.summary import metric_of
from hmc.training.analysis.figures.charts import (
    COLOURS,
    DIVERGING,
    KIND_TITLES,
    MARKERS,
    SEQUENTIAL,
    Panel,
    cumulative_curves,
    draw_head_maps,
    error_bars,
    figure,
    group_bars,
    histogram,
    map_size,
    save_figure,
    zero_line,
)
from hmc.training.data.parallel_text import corpus_names

WIDE = 6.5
HIGH = 4.0
EFFECT_TITLES = {"loss": "Δ loss", "bleu": "Δ BLEU", "importance": "I_h"}


def draw_importance(result: Result[ImportanceData], folder: Path) -> list[Path]:
    """`importance`: the head map; `importance_histogram`."""
    heads = result.data.heads
    table = table_of(result.data, heads, lambda row: row.importance)
    with figure(*map_size(table, 1)) as drawn:
        draw_head_maps(drawn, [Panel("importance I_h", table, SEQUENTIAL)])
        written = save_figure(drawn, folder / "importance")
    with figure(WIDE, HIGH) as drawn:
        histogram(drawn.add_subplot(), {"I_h": [row.importance for row in heads]})
        return written + save_figure(drawn, folder / "importance_histogram")


def draw_ablate(result: Result[AblationData], folder: Path) -> list[Path]:
    """`ablate`: maps of Δ loss and Δ BLEU. The same colour means worse in both."""
    heads = result.data.heads
    table = table_of(result.data, heads, lambda row: row.delta_loss.value)
    panels = [Panel("Δ loss [nats per token]", table, f"{DIVERGING}_r")]
    if result.data.full.bleu:
        table = table_of(result.data, heads, lambda row: row.delta_bleu.value if row.delta_bleu else math.nan)
        panels.append(Panel("Δ BLEU", table, DIVERGING))
    with figure(*map_size(table, len(panels))) as drawn:
        draw_head_maps(drawn, panels)
        return save_figure(drawn, folder / "ablate")


def draw_all_but_one(result: Result[AllButOneData], folder: Path) -> list[Path]:
    """`all-but-one`: Δ loss of each head kept alone, and Δ BLEU of the best one with its interval."""
    labels = {"delta_loss": "Δ loss, one head left"}
    if result.data.full.bleu:
        labels["delta_bleu"] = "Δ BLEU, best head left"
    with figure(7.5, 2.6 * len(labels)) as drawn:
        grid = drawn.subplots(len(labels), len(KINDS), sharey="row", squeeze=False)
        for column, kind in enumerate(KINDS):
            layers = [layer for layer in result.data.layers if layer.kind == kind]
            colour = COLOURS[column]
            x = [layer.layer for layer in layers]
            for axes, metric in zip(grid[:, column], labels, strict=True):
                zero_line(axes)
                if metric == "delta_loss":
                    for layer in layers:
                        y = [head.delta_loss.value for head in layer.heads]
                        axes.plot([layer.layer] * len(y), y, "o", color=colour, alpha=0.35, markersize=4)
                deltas: list[Estimate] = [getattr(layer, metric) for layer in layers]
                axes.errorbar(
                    x, [delta.value for delta in deltas], yerr=error_bars(deltas), fmt=MARKERS[column], color=colour,
                    markersize=6, capsize=3, linestyle="none",
                )  # fmt: skip
                axes.set_xticks(x)
                axes.grid(alpha=0.25)
            grid[0][column].set_title(KIND_TITLES[kind], fontsize=9)
            grid[-1][column].set_xlabel("layer")
        for axes, label in zip(grid[:, 0], labels.values(), strict=True):
            axes.set_ylabel(label)
        return save_figure(drawn, folder / "all-but-one")


def draw_groups(result: Result[GroupsData], folder: Path) -> list[Path]:
    """`groups`: one bar per group."""
    return _systems(folder / "groups", "groups", {"": result.data})


def draw_cumulative(result: Result[CumulativeData], folder: Path) -> list[Path]:
    """`cumulative`: two curves."""
    return _systems(folder / "cumulative", "cumulative", {"": result.data})


def draw_compare(result: Result[ComparisonData], folder: Path) -> list[Path]:
    """`compare`: the figure of the compared analysis, with all systems in one chart."""
    return _systems(folder / "compare", result.data.analysis, result.data.systems)


def _systems(prefix: Path, analysis: str, systems: Mapping[str, Any]) -> list[Path]:
    with figure(WIDE, HIGH) as drawn:
        axes = drawn.add_subplot()
        if analysis == "importance":
            values = {}
            for name, data in systems.items():
                values[name] = [row.importance for row in data.heads]
            histogram(axes, values)
        elif analysis == "groups":
            group_bars(axes, systems, metric_of([data.full for data in systems.values()]))
        else:
            cumulative_curves(axes, systems, metric_of([data.start for data in systems.values()]))
        return save_figure(drawn, prefix)


def draw_profile(result: Result[ProfileData], folder: Path) -> list[Path]:
    """`profile`: relative BLEU, one row per checkpoint, one column per share of heads masked."""
    rows = result.data.checkpoints
    shares = result.data.shares
    relative = np.empty((len(rows), len(shares)))
    for values, row in zip(relative, rows, strict=True):
        values[:] = [point.relative for point in row.points]
    with figure(max(WIDE, 0.55 * len(shares) + 2), 0.4 * len(rows) + 1.4) as drawn:
        axes = drawn.add_subplot()
        mesh = axes.pcolormesh(np.ma.masked_invalid(relative), vmin=0, vmax=1, cmap=SEQUENTIAL, edgecolors="white")
        for (y, x), value in np.ndenumerate(relative):
            text = "–" if np.isnan(value) else f"{100 * value:.0f}"
            colour = "black" if np.isnan(value) or value > 0.55 else "white"
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=colour, fontsize=8)
        axes.set_xticks(np.arange(len(shares)) + 0.5, [f"{share:.0%}" for share in shares])
        axes.set_yticks(np.arange(len(rows)) + 0.5, [row.name for row in rows])
        axes.tick_params(length=0)
        axes.set_xlabel("least important heads masked")
        axes.invert_yaxis()
        drawn.colorbar(mesh, ax=axes, label="BLEU / BLEU with all heads")
        return save_figure(drawn, folder / "profile")


def draw_correlate(result: Result[CorrelationData], folder: Path) -> list[Path]:
    """`correlate`: one point per head, and the least-squares line."""
    heads = result.data.heads
    title = EFFECT_TITLES[result.settings["effect"]]
    with figure(5.0, 4.6) as drawn:
        axes = drawn.add_subplot()
        for number, kind in enumerate(KINDS):
            x = [head.first for head in heads if head.kind == kind]
            y = [head.second for head in heads if head.kind == kind]
            axes.scatter(x, y, s=22, c=COLOURS[number], marker=MARKERS[number], alpha=0.8, label=KIND_TITLES[kind])
        x, y = np.array([(head.first, head.second) for head in heads]).T
        slope, offset = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, slope * ends + offset, color="black", linewidth=1, linestyle=":")
        names = []
        for corpus in result.corpora:
            files = corpus_names(corpus.name)
            names.append(files[0].name if files else corpus.name)
        axes.set_xlabel(f"{title} on {names[0]}")
        axes.set_ylabel(f"{title} on {names[1]}")
        r = result.data.pearson.value
        rho = result.data.spearman.value
        axes.set_title(f"Pearson {r:.2f}, Spearman {rho:.2f}", fontsize=9)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        return save_figure(drawn, folder / "correlate")
