"""What a pruning run is asked for, the stages that this makes, and how far a run has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import NeuronBudget, Stack
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.artifact.model.latency import LatencyTable, Sizes
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.pruning.settings import PruneSettings
from hmc.training.runs.state import RunProgress

Measure = Callable[[Checkpoint], float]
"""Milliseconds of a model on this machine, as the table counts them."""


@dataclass(frozen=True)
class LatencyGoal:
    """One latency to reach."""

    name: str
    """Name of the checkpoint that reaches it, such as `2x` or `12ms`."""
    ms: float
    """Milliseconds of one request of the table's setting."""


@dataclass(frozen=True)
class LatencyPlan:
    """The table, the latencies to reach, and how models are measured on the way."""

    table: LatencyTable
    goals: tuple[LatencyGoal, ...]
    """Falling."""
    measure: Measure | None = None
    """None: nothing is measured, and the table is believed."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises InvalidRequestError if the table belongs to another model, or if a goal cannot be reached or asks for
        nothing."""
        if self.table.architecture != checkpoint.architecture:
            raise InvalidRequestError(
                "the latency table was measured on a model of another architecture; leave latency_table out to "
                "measure this one"
            )
        sizes = Sizes.from_layout(checkpoint.layout, checkpoint.ffn_widths, checkpoint.removed_layers)
        now = self.table.observed_ms(sizes)
        least = self.table.floor_ms(sizes)
        for goal in self.goals:
            if goal.ms >= now:
                raise InvalidRequestError(
                    f"{goal.name}: the model takes {now:.2f} ms already, by the latency table; ask for less"
                )
            if goal.ms <= least:
                raise InvalidRequestError(
                    f"{goal.name}: {goal.ms:.2f} ms cannot be reached. What no pruning saves (embeddings, output "
                    f"projection, search, one head) takes {least:.2f} ms of {now:.2f} ms: ask for less than "
                    f"{now / least:.2f}x, or prune a model with a smaller vocabulary or d_model"
                )
        if any(slow.ms <= fast.ms for slow, fast in pairwise(self.goals)):
            raise InvalidRequestError("give latency targets from the slowest to the fastest, each of them once")

    def request(self) -> dict[str, Any]:
        """The record of the plan in a run folder, by which a request is compared with it."""
        goals = {goal.name: goal.ms for goal in self.goals}
        return {"goals": goals, "setting": self.table.setting.model_dump(mode="json")}


def goals_of(speedups: Sequence[float], milliseconds: Sequence[float], whole_ms: float) -> tuple[LatencyGoal, ...]:
    """Makes goals of speed-ups over the model's own latency `whole_ms`, or of latencies; the slowest first."""
    goals = [LatencyGoal(f"{speedup:g}x", whole_ms / speedup) for speedup in speedups]
    goals += [LatencyGoal(f"{ms:g}ms", ms) for ms in milliseconds]
    return tuple(sorted(goals, key=lambda goal: -goal.ms))


@dataclass(frozen=True)
class Stage:
    """One stage: gates close down to the budgets, or weights recover with the layout fixed.

    When both budgets are None, heads close in the λ form.
    """

    kind: Literal["close", "recover"]
    budget: HeadBudget | None
    neurons: int | None
    """Feed-forward neurons of the whole model that stay; None: neurons have no gates."""
    steps: int
    goal: LatencyGoal | None = None
    """Latency to reach, in place of budgets."""

    @property
    def folder(self) -> str:
        """Name of the checkpoint that the stages of this budget write: `h72`, `f1536`, `h72-f1536`, `2x` or
        `pruned`."""
        if self.goal:
            return self.goal.name
        heads = [self.budget.name] if self.budget else []
        return "-".join(heads + ([] if self.neurons is None else [f"f{self.neurons}"])) or "pruned"


@dataclass
class PruneProgress(RunProgress):
    """How far a pruning run has come."""

    stage: int = 0
    layout: dict[str, list[list[int]]] | None = None
    """Head layout fixed by the last closing stage."""
    starts: list[float] = field(default_factory=list)
    """Expected open heads of each part of the budget at the start of the current closing stage."""
    pressures: list[dict[str, float]] = field(default_factory=list)
    """`BudgetPressure.to_json` of each part of the budget."""
    before: dict[str, Any] = field(default_factory=dict)
    """Dev scores of the checkpoint before pruning."""
    trajectory: list[dict[str, Any]] = field(default_factory=list)
    """State of the gates each time that a closing stage logged."""
    undecided: dict[str, float] = field(default_factory=dict)
    """Heads whose gates were decided by rank in the last closing stage → P(g ≠ 0) at that time."""
    neurons: dict[Stack, list[list[int]]] | None = None
    """Feed-forward neurons that the last closing stage left; None when neurons have no gates."""
    neuron_starts: list[float] = field(default_factory=list)
    """As `starts`, for neurons."""
    neuron_pressures: list[dict[str, float]] = field(default_factory=list)
    """As `pressures`, for neurons."""
    neurons_undecided: int = 0
    """Number of neurons whose gates were decided by rank in the last closing stage; with a latency, of all gates."""
    removed_layers: dict[str, list[int]] | None = None
    """Layers that the last closing stage removed, or that were removed before; None when layers have no gates."""
    latency: dict[str, Any] = field(default_factory=dict)
    """State of a closing stage with a latency to reach."""
    measured: dict[str, Any] = field(default_factory=dict)
    """What the last closing stage with a latency to reach measured."""

    @property
    def heads(self) -> HeadLayout | None:
        """`layout` as heads."""
        return HeadLayout.from_json(self.layout) if self.layout else None

    @property
    def removed(self) -> RemovedLayers | None:
        """`removed_layers` as layers."""
        return None if self.removed_layers is None else RemovedLayers.model_validate(self.removed_layers)


def as_budgets(targets: Sequence[int | HeadBudget], settings: PruneSettings) -> list[HeadBudget]:
    """Makes head budgets of targets; a plain number is a budget for all heads in scope together."""
    budgets = []
    for target in targets:
        if isinstance(target, HeadBudget):
            budgets.append(target)
        else:
            budgets.append(HeadBudget(((settings.scope, target),)))
    return budgets


def plan_stages(
    budgets: Sequence[HeadBudget],
    layout: HeadLayout,
    settings: PruneSettings,
    neuron_budgets: Sequence[NeuronBudget] = (),
    neurons: int = 0,
) -> list[Stage]:
    """Returns a closing and a recovery stage for every budget, largest first.

    neurons: feed-forward neurons of the model. neuron_budgets: one for each of `budgets`, or one for all of them.
    Raises InvalidRequestError when the budgets do not fit the model, each other or the settings.
    """
    if bool(budgets or neuron_budgets) == (settings.l0_lambda is not None):
        raise InvalidRequestError("give either target_heads, target_ffn or both, or l0_lambda")
    if settings.settle_gates and settings.l0_lambda is None:
        raise InvalidRequestError("settle_gates belongs to l0_lambda; budgets always settle their gates")
    _check_heads(budgets, layout, settings)
    stages: list[Stage] = []
    for pair in _paired(budgets, [budget.neurons(neurons) for budget in neuron_budgets]) or [(None, None)]:
        stages.append(Stage("close", *pair, settings.steps_of("close")))
        stages.append(Stage("recover", *pair, settings.steps_of("recover")))
    return stages


def plan_latency_stages(
    plan: LatencyPlan, source: Checkpoint, settings: PruneSettings, budgets: Sequence[object] = ()
) -> list[Stage]:
    """Returns a closing and a recovery stage for every latency of the plan, the slowest first.

    budgets: other targets of the request. Raises InvalidRequestError when the latencies do not fit the model or the
    settings.
    """
    check_latency_settings(settings, budgets)
    plan.check(source)
    stages: list[Stage] = []
    for goal in plan.goals:
        stages.append(Stage("close", None, None, settings.steps_of("close"), goal))
        stages.append(Stage("recover", None, None, settings.steps_of("recover"), goal))
    return stages


def check_latency_settings(settings: PruneSettings, budgets: Sequence[object] = ()) -> None:
    """Raises InvalidRequestError when settings, or the budgets given too, contradict a latency."""
    if budgets or settings.l0_lambda is not None:
        raise InvalidRequestError(
            "a latency decides on heads, neurons and layers together: give it without target_heads, target_ffn and "
            "l0_lambda"
        )
    if settings.settle_gates:
        raise InvalidRequestError("settle_gates belongs to l0_lambda; latencies always settle their gates")
    if settings.scope != KINDS:
        raise InvalidRequestError("scope: a latency decides on heads of all kinds; leave it out")


def _check_heads(budgets: Sequence[HeadBudget], layout: HeadLayout, settings: PruneSettings) -> None:
    for budget in budgets:
        outside = [kind for kind in budget.kinds if kind not in settings.scope]
        if outside:
            raise InvalidRequestError(f"target_heads: {', '.join(outside)} is outside the scope")
        if not (available := budget.available(layout)):
            raise InvalidRequestError(
                f"target_heads {budget.name}: this checkpoint has no heads of {', '.join(budget.kinds)} left to close"
            )
        if budget.heads >= available:
            raise InvalidRequestError(f"target_heads {budget.name}: give budgets below the {available} open heads")
        if problems := budget.problems(layout):
            raise InvalidRequestError(f"target_heads: {problems[0]}")
    for wide, narrow in pairwise(budgets):
        if not narrow.within(wide):
            raise InvalidRequestError(
                f"target_heads: give falling budgets of the same kinds; {narrow.name} does not follow {wide.name}"
            )


def _paired(budgets: Sequence[HeadBudget], neurons: list[int]) -> list[tuple[HeadBudget | None, int | None]]:
    """Returns the head and neuron budgets of every pair of stages. Raises InvalidRequestError."""
    if not neurons:
        return [(budget, None) for budget in budgets]
    if any(wide <= narrow for wide, narrow in pairwise(neurons)):
        raise InvalidRequestError(
            f"target_ffn: give each budget smaller than the one before, not {', '.join(map(str, neurons))}"
        )
    if not budgets:
        return [(None, number) for number in neurons]
    if len(neurons) == 1:
        neurons = neurons * len(budgets)
    if len(neurons) != len(budgets):
        raise InvalidRequestError(
            f"target_ffn: give one budget for all of target_heads, or one for each; {len(neurons)} and "
            f"{len(budgets)} do not pair up"
        )
    return list(zip(budgets, neurons, strict=True))
