"""Which heads a level keeps: its checkpoint's own layout, a given one, or the best heads by log α or I_h."""

from __future__ import annotations

from typing import Literal

from hmc.artifact.budgets import HeadBudget
from hmc.artifact.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import KINDS, HeadLayout, HeadScores

Target = int | HeadBudget | HeadLayout
"""Heads that stay: so many of all kinds, a budget, or just these."""
Ranking = Literal["gates", "importance"]
WRITTEN_BY: dict[Ranking, str] = {"gates": "`hmc prune` on it", "importance": "`hmc analyze importance --save`"}


def choose_layout(checkpoint: Checkpoint, target: Target | None, rank_by: Ranking | None = None) -> HeadLayout:
    """The open heads of a level; target None: those of the checkpoint.

    Of a budget's heads the best stay: by log α of the gates (Voita et al. 2019), or by I_h (Michel et al. 2019);
    rank_by None: by the gates where there are any. Where all of them stay nothing is ranked. Raises InvalidRequestError
    for heads that the checkpoint has not, and where it has nothing to rank them by, as any choice would be arbitrary.
    """
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
    """What a checkpoint's heads are ranked by: log α or, without gates, I_h.

    Raises InvalidRequestError where it has neither, or not what `rank_by` names; `asked` is the option that needs them.
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
    raise InvalidRequestError(f"{asked}: {there}; choose 0 to {layout.total}")
