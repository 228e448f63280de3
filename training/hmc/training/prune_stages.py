"""What a pruning run does in which order, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from hmc.artifact.budgets import HeadBudget
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.heads import HeadLayout
from hmc.training.prune_settings import PruneSettings


@dataclass(frozen=True)
class Stage:
    """Close gates down to `budget` (None: λ form), or recover with the layout fixed."""

    kind: Literal["close", "recover"]
    budget: HeadBudget | None
    steps: int

    @property
    def folder(self) -> str:
        """Name of the checkpoint that the stages of this budget end in."""
        return self.budget.name if self.budget else "pruned"


@dataclass
class PruneProgress:
    """What a resumed run must know besides weights, moments and random numbers."""

    stage: int = 0
    step: int = 0
    """Updates done within the stage."""
    epoch: int = 0
    index: int = 0
    layout: dict[str, list[list[int]]] | None = None
    """Layout fixed by the last closing stage."""
    starts: list[float] = field(default_factory=list)
    """Expected open heads of each part of the budget when the present closing stage began."""
    pressures: list[dict[str, float]] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """Gates in the course of closing: one entry each time something is logged."""
    undecided: dict[str, float] = field(default_factory=dict)
    """Gates that were decided by rank, not by themselves, in the last closing stage: head → P(g ≠ 0) at that time."""


def as_budgets(targets: Sequence[int | HeadBudget], settings: PruneSettings) -> list[HeadBudget]:
    """A plain number is a budget for all heads in scope together."""
    return [t if isinstance(t, HeadBudget) else HeadBudget(((settings.scope, t),)) for t in targets]


def plan_stages(budgets: Sequence[HeadBudget], layout: HeadLayout, settings: PruneSettings) -> list[Stage]:
    """Close and recover for every budget, largest first. Raises InvalidRequestError."""
    if bool(budgets) == (settings.l0_lambda is not None):
        raise InvalidRequestError("give either --target-heads or --l0-lambda X")
    for budget in budgets:
        outside = [kind for kind in budget.kinds if kind not in settings.scope]
        if outside:
            raise InvalidRequestError(f"--target-heads: {', '.join(outside)} is outside --scope")
        if problems := budget.problems(layout):
            raise InvalidRequestError(f"--target-heads: {problems[0]}")
        if budget.heads == (there := budget.available(layout)):
            raise InvalidRequestError(f"--target-heads {budget.name}: give budgets below the {there} heads there are")
    for wide, narrow in pairwise(budgets):
        if not narrow.within(wide):
            raise InvalidRequestError(
                f"--target-heads: give falling budgets of the same kinds; {narrow.name} does not follow {wide.name}"
            )
    wanted: list[HeadBudget | None] = [*budgets] or [None]
    return [
        stage
        for budget in wanted
        for stage in (Stage("close", budget, settings.close_steps), Stage("recover", budget, settings.recover_steps))
    ]
