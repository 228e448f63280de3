"""Groups of heads masked one after another, from either end of the ranking (Sun et al. 2021, figures 2 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

import numpy as np

from hmc.artifact.model.heads import Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.records import ORDERS, CumulativeData, CurvePoint
from hmc.training.analysis.common.result import WITHIN, Result, masked_within
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import DIGITS, TITLES, Summary, interval, metric_of
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
) -> Result[CumulativeData]:
    """Loss and BLEU after 0, 1, … all groups of heads are masked, in both orders. Raises InvalidRequestError."""
    parts = split_heads(ranking.heads, groups)
    closed = {
        ORDERS[0]: list(accumulate(parts, initial=list[Head]())),
        ORDERS[1]: list(accumulate(parts[::-1], initial=list[Head]())),
    }
    masks = np.stack([close_heads(subject.layout, heads) for heads in chain.from_iterable(closed.values())])
    measured = measure(subject, text, masks, settings, progress)
    curves: dict[str, list[CurvePoint]] = {}
    mask = 0
    for order, steps in closed.items():
        curves[order] = []
        for heads in steps:
            deltas = measured.deltas(mask) if heads else {}
            curves[order].append(CurvePoint(masked=len(heads), **measured.scores(mask), **deltas))
            mask += 1
    metrics = ["loss", "bleu"] if settings.bleu else ["loss"]
    return subject.result(
        COMMAND,
        text.source,
        settings={**settings.to_json(text), "rank": ranking.origin},
        data=CumulativeData(
            heads=len(ranking.heads), curves=curves, gap={metric: gap(curves, metric) for metric in metrics}
        ),
    )


def gap(curves: Mapping[str, Sequence[CurvePoint]], metric: str) -> float:
    """Area between the two curves over the share of heads masked, by the trapezoid rule, in BLEU points or nats.

    It is 0 when all heads are equal, and positive when masking the most important heads first does more harm.
    """
    areas = []
    for order in ORDERS:
        masked = np.array([point.masked for point in curves[order]], float)
        values = np.array([point.metric(metric).value for point in curves[order]])
        areas.append(float(np.trapezoid(values, masked / masked[-1])))
    most, least = areas
    return least - most if metric == "bleu" else most - least


def summary(result: Result[CumulativeData]) -> Summary:
    """Both curves side by side, one row per number of groups masked."""
    most, least = (result.data.curves[order] for order in ORDERS)
    metric = metric_of([result.data.start])
    digits = DIGITS[metric]
    title = TITLES[metric]
    rows = []
    for number, (first, last) in enumerate(zip(most, least, strict=True)):
        row = [str(number)]
        for point in (first, last):
            row += [str(point.masked), interval(point.metric(metric), digits)]
        rows.append(tuple(row))
    columns = ("groups", "heads", f"{title}, most important first", "heads", f"{title}, least important first")
    notes = [f"area between the curves: {result.data.gap[metric]:.{digits}f} ({title}, over the share of heads masked)"]
    if metric == "bleu":
        notes.append(
            f"masked within {WITHIN:g} BLEU: {masked_within(least)} heads least important first, "
            f"{masked_within(most)} most important first"
        )
    return Summary("Groups of heads masked one after another", columns, tuple(rows), tuple(notes))
