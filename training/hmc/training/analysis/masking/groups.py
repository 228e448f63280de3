"""Heads divided into groups by importance, one group masked at a time (Sun et al. 2021, figures 1 and 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.result import Result
from hmc.training.analysis.common.subject import Progress, Subject, Text, silent
from hmc.training.analysis.common.summary import Summary, change, interval, probability
from hmc.training.analysis.masking.ranking import Ranking

COMMAND = "groups"
GROUPS = 8
"""Default number of groups."""


def check_groups(groups: int, heads: int) -> None:
    """Raises InvalidRequestError unless `groups` is 1 to `heads`, the number of open heads that are ranked."""
    if not heads:
        raise InvalidRequestError("this checkpoint has no open head of the kinds that are asked for")
    if not 1 <= groups <= heads:
        raise InvalidRequestError(f"groups {groups}: there are {heads} open heads to mask; choose 1 to {heads}")


def split_heads(heads: Sequence[Head], groups: int) -> list[list[Head]]:
    """Divides heads, in their order, into `groups` lists of almost equal size, larger ones first.

    Raises InvalidRequestError unless `groups` is 1 to the number of heads.
    """
    check_groups(groups, len(heads))
    return [[heads[i] for i in part] for part in np.array_split(np.arange(len(heads)), groups)]


def analyse(
    subject: Subject,
    text: Text,
    ranking: Ranking,
    settings: Settings,
    groups: int = GROUPS,
    progress: Progress = silent,
) -> Result:
    """Loss and BLEU without each group of heads; the first group is the most important. Raises InvalidRequestError."""
    parts = split_heads(ranking.heads, groups)
    masks = np.stack([close_heads(subject.layout, part) for part in ([], *parts)])
    found = measure(subject, text, masks, settings, progress)
    rows = []
    first = 1
    for mask, part in enumerate(parts, 1):
        names = [str(head) for head in part]
        scores = {**found.scores(mask), **found.deltas(mask)}
        rows.append({"first": first, "last": first + len(part) - 1, "heads": names, **scores})
        first += len(part)
    return subject.result(
        COMMAND,
        text.source,
        settings={**settings.to_json(text), "rank": ranking.origin},
        data={"heads": len(ranking.heads), "full": found.scores(0), "groups": rows},
    )


def summary(result: Result) -> Summary:
    """One row per group."""
    full = result.data["full"]
    with_bleu = "bleu" in full
    rows = tuple(
        (
            f"{group['first']}–{group['last']}",
            interval(group["loss"], 4),
            *(
                (interval(group["bleu"]), change(group["delta_bleu"]), probability(group["delta_bleu"]["p_value"]))
                if with_bleu
                else (change(group["delta_loss"], 4), probability(group["delta_loss"]["p_value"]))
            ),
        )
        for group in result.data["groups"]
    )
    nothing = ("none", interval(full["loss"], 4), *((interval(full["bleu"]), "", "") if with_bleu else ("", "")))
    name = "Δ BLEU (95 %)" if with_bleu else "Δ loss (95 %)"
    columns = ("ranks masked", "loss (95 %)", *(("BLEU (95 %)",) if with_bleu else ()), name, "p")
    return Summary("One group of heads masked, most important first", columns, (nothing, *rows))
