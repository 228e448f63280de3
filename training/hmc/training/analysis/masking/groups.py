"""Heads divided into groups by importance, one group masked at a time (Sun et al. 2021, figures 1 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.heads import Head
from hmc.training.analysis.common.masks import close_heads
from hmc.training.analysis.common.measure import Settings, measure
from hmc.training.analysis.common.records import GroupsData, MaskedGroup, MaskScores
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
    ends = [int(part[-1]) + 1 for part in np.array_split(np.arange(len(heads)), groups)]
    return [list(heads[start:end]) for start, end in pairwise([0, *ends])]


def analyse(
    subject: Subject,
    text: Text,
    ranking: Ranking,
    settings: Settings,
    groups: int = GROUPS,
    progress: Progress = silent,
) -> Result[GroupsData]:
    """Loss and BLEU without each group of heads; the first group is the most important. Raises InvalidRequestError."""
    parts = split_heads(ranking.heads, groups)
    masks = np.stack([close_heads(subject.layout, part) for part in ([], *parts)])
    measured = measure(subject, text, masks, settings, progress)
    rows = []
    first = 1
    for mask, part in enumerate(parts, 1):
        last = first + len(part) - 1
        names = list(map(str, part))
        rows.append(MaskedGroup(first=first, last=last, heads=names, **measured.scores(mask), **measured.deltas(mask)))
        first = last + 1
    return subject.result(
        COMMAND,
        text.source,
        settings={**settings.to_json(text), "rank": ranking.origin},
        data=GroupsData(heads=len(ranking.heads), full=MaskScores(**measured.scores(0)), groups=rows),
    )


def summary(result: Result[GroupsData]) -> Summary:
    """One row per group."""
    full = result.data.full
    columns = ["ranks masked", "loss (95 %)"]
    nothing = ["none", interval(full.loss, 4)]
    if full.bleu:
        columns.append("BLEU (95 %)")
        nothing.append(interval(full.bleu))
    columns += ["Δ BLEU (95 %)" if full.bleu else "Δ loss (95 %)", "p"]
    rows = [(*nothing, "", "")]
    for group in result.data.groups:
        row = [group.ranks, interval(group.loss, 4)]
        if group.bleu and group.delta_bleu:
            row += [interval(group.bleu), change(group.delta_bleu), probability(group.delta_bleu.p_value)]
        else:
            row += [change(group.delta_loss, 4), probability(group.delta_loss.p_value)]
        rows.append(tuple(row))
    return Summary("One group of heads masked, most important first", tuple(columns), tuple(rows))
