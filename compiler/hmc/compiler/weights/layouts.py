"""Which heads a level keeps: those of its checkpoint, given ones, or the best by log α or I_h."""

from __future__ import annotations

from typing import Literal

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.heads import BLIND, KINDS, HeadLayout, HeadScores

Target = int | HeadBudget | HeadLayout
"""Heads that stay: a number over all kinds, a budget, or a given layout."""
Ranking = Literal["gates", "importance"]
WRITTEN_BY: dict[Ranking, str] = {"gates": "`hmc prune` on it", "importance": "`hmc analyze importance --save`"}


def choose_layout(checkpoint: Checkpoint, target: Target | None, rank_by: Ranking | None = None) -> HeadLayout:
    """The open heads of a level. target None: those of the checkpoint.

    A budget keeps the heads that rank best: by log α of the gates (Voita et al. 2019) or by I_h (Michel et al. 2019).
    rank_by None: by the gates if there are any, else by I_h. A budget that keeps all heads needs no ranking. Raises
    InvalidRequestError for heads that the checkpoint does not have; where it has no scores to rank by, since any choice
    would then be arbitrary; and where no head of cross-attention would stay.
    """
    layout = _chosen(checkpoint, target, rank_by)
    if not layout.sees_source:
        asked = f"--target-heads {target}" if isinstance(target, int | HeadBudget) else "this head layout"
        raise InvalidRequestError(f"{asked}: {BLIND}")
    return layout


def _chosen(checkpoint: Checkpoint, target: Target | None, rank_by: Ranking | None) -> HeadLayout:
    layout = checkpoint.layout
    if target is None:
        return layout
    if isinstance(target, HeadLayout):
        return _given(target, checkpoint)
    budget = HeadBudget(((KINDS, target),)) if isinstance(target, int) else target
    asked = f"--target-heads {budget}"
    if budget.problems(layout):
        _refuse(budget, layout, asked)
    if budget.heads == budget.available(layout):
        return layout
    return budget.select(head_scores(checkpoint, asked, rank_by), layout)


def head_scores(checkpoint: Checkpoint, asked: str, rank_by: Ranking | None = None) -> HeadScores:
    """The scores by which a checkpoint's heads are ranked: log α or, without gates, I_h.

    asked: the option that needs them, for messages. Raises InvalidRequestError if the checkpoint has neither, or lacks
    what `rank_by` names.
    """
    found = {"gates": checkpoint.gates, "importance": checkpoint.importance}
    scores = found[rank_by] if rank_by else next((x for x in found.values() if x is not None), None)
    if scores is None:
        lacks = f"has no {rank_by}" if rank_by else "has neither gates nor importance"
        advice = ", or ".join(run for name, run in WRITTEN_BY.items() if rank_by in (None, name))
        raise InvalidRequestError(
            f"{asked}: the checkpoint {lacks} to choose heads by; run {advice}, and compile what that writes"
        )
    return scores


def _given(target: HeadLayout, checkpoint: Checkpoint) -> HeadLayout:
    if problems := checkpoint.architecture.layout_problems(target):
        raise InvalidRequestError(f"does not fit this checkpoint: {problems[0]}")
    checkpoint.layout.restrict(target)
    return target


def _refuse(budget: HeadBudget, layout: HeadLayout, asked: str) -> None:
    [*rest, (kinds, heads)] = budget.parts
    if rest or kinds != KINDS:
        raise InvalidRequestError(f"{asked}: {budget.problems(layout)[0]}")
    there = f"this checkpoint has {layout.total} open heads"
    if heads > layout.total:
        raise InvalidRequestError(f"{asked}: {there}; removed heads cannot come back")
    if heads == 0:
        raise InvalidRequestError(f"{asked}: {BLIND}")
    raise InvalidRequestError(f"{asked}: {there}; choose 1 to {layout.total}")
