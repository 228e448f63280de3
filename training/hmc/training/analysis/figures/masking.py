"""Figures of the analyses that mask heads, of importance, and of results side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmc.artifact.model.heads import KINDS
from hmc.training.analysis.across.compare import metric_of
from hmc.training.analysis.common.result import ORDERS, Result, table_of
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


def draw_importance(result: Result, folder: Path) -> list[Path]:
    """`importance`: the head map; `importance_histogram`."""
    table = table_of(result.data, lambda row: row["importance"])
    with figure(*map_size(table, 1)) as drawn:
        draw_head_maps(drawn, [Panel("importance I_h", table, SEQUENTIAL)])
        written = save_figure(drawn, folder / "importance")
    with figure(WIDE, HIGH) as drawn:
        histogram(drawn.add_subplot(), {"I_h": [row["importance"] for row in result.data["heads"]]})
        return written + save_figure(drawn, folder / "importance_histogram")


def draw_ablate(result: Result, folder: Path) -> list[Path]:
    """`ablate`: maps of Δ loss and Δ BLEU. The same colour means worse in both."""
    panels = []
    for key, label in (("delta_loss", "Δ loss [nats per token]"), ("delta_bleu", "Δ BLEU")):
        if key in result.data["heads"][0]:
            table = table_of(result.data, lambda row, k=key: row[k]["value"])  # type: ignore[misc]
            panels.append(Panel(label, table, DIVERGING if key == "delta_bleu" else f"{DIVERGING}_r"))
    with figure(*map_size(panels[0].table, len(panels))) as drawn:
        draw_head_maps(drawn, panels)
        return save_figure(drawn, folder / "ablate")


def draw_all_but_one(result: Result, folder: Path) -> list[Path]:
    """`all-but-one`: Δ loss of each head kept alone, and Δ BLEU of the best one with its interval."""
    layers = result.data["layers"]
    metrics = ["delta_loss", *(["delta_bleu"] if "delta_bleu" in layers[0] else [])]
    with figure(7.5, 2.6 * len(metrics)) as drawn:
        grid = drawn.subplots(len(metrics), len(KINDS), sharey="row", squeeze=False)
        for column, kind in enumerate(KINDS):
            rows = [layer for layer in layers if layer["kind"] == kind]
            colour = COLOURS[column]
            x = [layer["layer"] for layer in rows]
            for row, metric in enumerate(metrics):
                axes = grid[row][column]
                zero_line(axes)
                if metric == "delta_loss":
                    for layer in rows:
                        y = [head["delta_loss"]["value"] for head in layer["heads"]]
                        axes.plot([layer["layer"]] * len(y), y, "o", color=colour, alpha=0.35, markersize=4)
                y = [layer[metric]["value"] for layer in rows]
                bars = error_bars([layer[metric] for layer in rows])
                axes.errorbar(
                    x, y, yerr=bars, fmt=MARKERS[column], color=colour, markersize=6, capsize=3, linestyle="none"
                )
                axes.set_xticks(x)
                axes.grid(alpha=0.25)
            grid[0][column].set_title(KIND_TITLES[kind], fontsize=9)
            grid[-1][column].set_xlabel("layer")
        for row, metric in enumerate(metrics):
            grid[row][0].set_ylabel("Δ loss, one head left" if metric == "delta_loss" else "Δ BLEU, best head left")
        return save_figure(drawn, folder / "all-but-one")


def draw_groups(result: Result, folder: Path) -> list[Path]:
    """`groups`: one bar per group."""
    return _systems(folder / "groups", "groups", {"": result.data})


def draw_cumulative(result: Result, folder: Path) -> list[Path]:
    """`cumulative`: two curves."""
    return _systems(folder / "cumulative", "cumulative", {"": result.data})


def draw_compare(result: Result, folder: Path) -> list[Path]:
    """`compare`: the figure of the compared analysis, with all systems in one chart."""
    return _systems(folder / "compare", result.data["analysis"], result.data["systems"])


def _systems(prefix: Path, analysis: str, systems: Mapping[str, Any]) -> list[Path]:
    with figure(WIDE, HIGH) as drawn:
        axes = drawn.add_subplot()
        if analysis == "importance":
            histogram(axes, {n: [row["importance"] for row in data["heads"]] for n, data in systems.items()})
        elif analysis == "groups":
            group_bars(axes, systems, metric_of([data["full"] for data in systems.values()]))
        else:
            cumulative_curves(axes, systems, metric_of([data["curves"][ORDERS[0]][0] for data in systems.values()]))
        return save_figure(drawn, prefix)


def draw_profile(result: Result, folder: Path) -> list[Path]:
    """`profile`: relative BLEU, one row per checkpoint, one column per share of heads masked."""
    rows = result.data["checkpoints"]
    relative = [
        [np.nan if p["relative_bleu"] is None else p["relative_bleu"]["value"] for p in row["points"]] for row in rows
    ]
    shares = result.data["shares"]
    with figure(max(WIDE, 0.55 * len(shares) + 2), 0.4 * len(rows) + 1.4) as drawn:
        axes = drawn.add_subplot()
        mesh = axes.pcolormesh(np.ma.masked_invalid(relative), vmin=0, vmax=1, cmap=SEQUENTIAL, edgecolors="white")
        for y, values in enumerate(relative):
            for x, value in enumerate(values):
                text = "–" if np.isnan(value) else f"{100 * value:.0f}"
                dark = np.isnan(value) or value > 0.55
                axes.text(
                    x + 0.5, y + 0.5, text, ha="center", va="center", color="black" if dark else "white", fontsize=8
                )
        axes.set_xticks(np.arange(len(shares)) + 0.5, [f"{share:.0%}" for share in shares])
        axes.set_yticks(np.arange(len(rows)) + 0.5, [row["name"] for row in rows])
        axes.tick_params(length=0)
        axes.set_xlabel("least important heads masked")
        axes.invert_yaxis()
        drawn.colorbar(mesh, ax=axes, label="BLEU / BLEU with all heads")
        return save_figure(drawn, folder / "profile")


def draw_correlate(result: Result, folder: Path) -> list[Path]:
    """`correlate`: one point per head, and the least-squares line."""
    heads = result.data["heads"]
    title = EFFECT_TITLES[result.settings["effect"]]
    with figure(5.0, 4.6) as drawn:
        axes = drawn.add_subplot()
        for number, kind in enumerate(KINDS):
            some = [head for head in heads if head["kind"] == kind]
            places = ([head["first"] for head in some], [head["second"] for head in some])
            axes.scatter(*places, s=22, c=COLOURS[number], marker=MARKERS[number], alpha=0.8, label=KIND_TITLES[kind])
        x = np.array([head["first"] for head in heads])
        y = np.array([head["second"] for head in heads])
        slope, offset = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, slope * ends + offset, color="black", linewidth=1, linestyle=":")
        names = [(*(path.name for path in corpus_names(corpus.name)), corpus.name)[0] for corpus in result.corpora]
        axes.set_xlabel(f"{title} on {names[0]}")
        axes.set_ylabel(f"{title} on {names[1]}")
        r = result.data["pearson"]
        rho = result.data["spearman"]
        axes.set_title(f"Pearson {r['value']:.2f}, Spearman {rho['value']:.2f}", fontsize=9)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
        return save_figure(drawn, folder / "correlate")
