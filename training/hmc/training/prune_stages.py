"""What a pruning run does in which order, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from hmc.artifact.budgets import HeadBudget
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.ffn import NeuronBudget, Stack
from hmc.artifact.heads import HeadLayout
from hmc.training.prune_settings import PruneSettings


@dataclass(frozen=True)
class Stage:
    """Close gates down to `budget` and `neurons`, or recover with the layout fixed. Neither: the λ form for heads."""

    kind: Literal["close", "recover"]
    budget: HeadBudget | None
    neurons: int | None
    """Feed-forward neurons over the whole model; None: they have no gates."""
    steps: int

    @property
    def folder(self) -> str:
        """Name of the checkpoint that the stages of this budget end in: `h72`, `f1536` or `h72-f1536`."""
        heads = [self.budget.name] if self.budget else []
        return "-".join(heads + ([] if self.neurons is None else [f"f{self.neurons}"])) or "pruned"


@dataclass
class PruneProgress:
    """What a resumed run must know besides weights, moments and random numbers."""

    stage: int = 0
    step: int = 0
    """Updates done within the stage."""
    epoch: int = 0
    index: int = 0
    layout: dict[str, list[list[int]]] | None = None
    """Head layout fixed by the last closing stage."""
    starts: list[float] = field(default_factory=list)
    """Expected open heads of each part of the budget when the present closing stage began."""
    pressures: list[dict[str, float]] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """Gates in the course of closing: one entry each time something is logged."""
    undecided: dict[str, float] = field(default_factory=dict)
    """Gates that were decided by rank, not by themselves, in the last closing stage: head → P(g ≠ 0) at that time."""
    neurons: dict[Stack, list[list[int]]] | None = None
    """Feed-forward neurons that the last closing stage left, where there are gates on them."""
    neuron_starts: list[float] = field(default_factory=list)
    neuron_pressures: list[dict[str, float]] = field(default_factory=list)
    neurons_undecided: int = 0
    """As `undecided`, counted."""
    corpus: str = ""
    """Fingerprint of the tokenised training text; earlier versions kept none, also of the next two."""
    dev: str = ""
    """Fingerprint of the dev text."""
    source: str = ""
    """Digest of the checkpoint that is pruned."""


def as_budgets(targets: Sequence[int | HeadBudget], settings: PruneSettings) -> list[HeadBudget]:
    """A plain number is a budget for all heads in scope together."""
    return [t if isinstance(t, HeadBudget) else HeadBudget(((settings.scope, t),)) for t in targets]


def plan_stages(
    budgets: Sequence[HeadBudget],
    layout: HeadLayout,
    settings: PruneSettings,
    neuron_budgets: Sequence[NeuronBudget] = (),
    neurons: int = 0,
) -> list[Stage]:
    """Close and recover for every budget, largest first. Raises InvalidRequestError.

    neurons: feed-forward neurons of the model. neuron_budgets: one for each of `budgets`, or one for all of them.
    """
    if bool(budgets or neuron_budgets) == (settings.l0_lambda is not None):
        raise InvalidRequestError("give either --target-heads, --target-ffn or both, or --l0-lambda X")
    _check_heads(budgets, layout, settings)
    wanted = _paired(budgets, [budget.neurons(neurons) for budget in neuron_budgets])
    return [
        stage
        for heads, left in wanted or [(None, None)]
        for stage in (
            Stage("close", heads, left, settings.close_steps),
            Stage("recover", heads, left, settings.recover_steps),
        )
    ]


def _check_heads(budgets: Sequence[HeadBudget], layout: HeadLayout, settings: PruneSettings) -> None:
    for budget in budgets:
        outside = [kind for kind in budget.kinds if kind not in settings.scope]
        if outside:
            raise InvalidRequestError(f"--target-heads: {', '.join(outside)} is outside --scope")
        if problems := budget.problems(layout):
            raise InvalidRequestError(f"--target-heads: {problems[0]}")
        if not (there := budget.available(layout)):
            raise InvalidRequestError(
                f"--target-heads {budget.name}: this checkpoint has no heads of {', '.join(budget.kinds)} left to close"
            )
        if budget.heads == there:
            raise InvalidRequestError(f"--target-heads {budget.name}: give budgets below the {there} heads there are")
    for wide, narrow in pairwise(budgets):
        if not narrow.within(wide):
            raise InvalidRequestError(
                f"--target-heads: give falling budgets of the same kinds; {narrow.name} does not follow {wide.name}"
            )


def _paired(budgets: Sequence[HeadBudget], neurons: list[int]) -> list[tuple[HeadBudget | None, int | None]]:
    """The budgets of every pair of stages. Raises InvalidRequestError."""
    if not neurons:
        return [(budget, None) for budget in budgets]
    if any(wide <= narrow for wide, narrow in pairwise(neurons)):
        raise InvalidRequestError(f"--target-ffn: give falling budgets, not {', '.join(map(str, neurons))}")
    if not budgets:
        return [(None, number) for number in neurons]
    if len(neurons) == 1:
        neurons = neurons * len(budgets)
    if len(neurons) != len(budgets):
        raise InvalidRequestError(
            f"--target-ffn: give one budget for all of --target-heads or as many; {len(neurons)} and {len(budgets)} "
            "do not pair up"
        )
    return list(zip(budgets, neurons, strict=True))
