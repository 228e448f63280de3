"""Groups of heads masked one after another, from either end of the ranking (Sun et al. 2021, figures 2 and 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.result import ORDERS, WITHIN, Result, masked_within
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, interval
from hmc.training.analysis.masking.groups import GROUPS, split_heads
from hmc.training.analysis.masking.ranking import Ranking

COMMAND = "cumulative"


def analyse(
    subject: Subject,
    text: Text,
    ranking: Ranking,
    settings: Settings,
    groups: int = GROUPS,
    progress: Progress = silent,
) -> Result:
    """Loss and BLEU after 0, 1, … all groups of heads are masked, in both orders. Raises InvalidRequestError."""
    parts = split_heads(ranking.heads, groups)
    closed = {
        ORDERS[0]: [[head for part in parts[:n] for head in part] for n in range(groups + 1)],
        ORDERS[1]: [[head for part in parts[groups - n :] for head in part] for n in range(groups + 1)],
    }
    masks = np.stack([close_heads(subject.layout, heads) for order in ORDERS for heads in closed[order]])
    found = measure(subject, text, masks, settings, progress)
    curves: dict[str, list[dict[str, Any]]] = {}
    for start, order in zip((0, groups + 1), ORDERS, strict=True):
        curves[order] = [
            {"masked": len(heads), **found.scores(start + n), **(found.deltas(start + n) if n else {})}
            for n, heads in enumerate(closed[order])
        ]
    return subject.result(
        COMMAND,
        text.source,
        settings={**settings.to_json(text), "rank": ranking.origin},
        data={
            "heads": len(ranking.heads),
            "curves": curves,
            "gap": {name: gap(curves, name) for name in ("loss", "bleu") if name in curves[ORDERS[0]][0]},
        },
    )


def gap(curves: dict[str, list[dict[str, Any]]], name: str) -> float:
    """Area between the two curves over the share of heads masked, by the trapezoid rule, in BLEU points or nats.

    It is 0 when all heads are equal, and positive when masking the most important heads first does more harm.
    """
    areas = []
    for order in ORDERS:
        masked = np.array([point["masked"] for point in curves[order]], float)
        values = np.array([point[name]["value"] for point in curves[order]])
        areas.append(float(np.trapezoid(values, masked / masked[-1])))
    most, least = areas
    return least - most if name == "bleu" else most - least


def summary(result: Result) -> Summary:
    """Both curves side by side, one row per number of groups masked."""
    curves = [result.data["curves"][order] for order in ORDERS]
    name, digits = ("bleu", 2) if "bleu" in curves[0][0] else ("loss", 4)
    rows = tuple(
        (
            str(number),
            str(most["masked"]),
            interval(most[name], digits),
            str(least["masked"]),
            interval(least[name], digits),
        )
        for number, (most, least) in enumerate(zip(*curves, strict=True))
    )
    title = "BLEU" if name == "bleu" else "loss"
    columns = ("groups", "heads", f"{title}, most important first", "heads", f"{title}, least important first")
    notes = [
        f"area between the curves: {result.data['gap'][name]:.{digits}f} ({title}, over the share of heads masked)"
    ]
    if name == "bleu":
        most, least = (masked_within(curve) for curve in curves)
        notes.append(f"masked within {WITHIN:g} BLEU: {least} heads least important first, {most} most important first")
    return Summary("Groups of heads masked one after another", columns, rows, tuple(notes))
