"""The closing stage of a run, whatever its budget is: heads and neurons by number, or all parts by latency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hmc.artifact.model.ffn import Stack
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.pruning.closing import HeadClosing, NeuronClosing, total_penalty
from hmc.training.pruning.gate_sets import HeadGates, NeuronGates
from hmc.training.pruning.latency.choice import Choice, Chooser
from hmc.training.pruning.latency.closing import LatencyClosing
from hmc.training.pruning.latency.expected import ExpectedLatency, ModelGates
from hmc.training.pruning.latency.goals import LatencyGoal, LatencyPlan
from hmc.training.pruning.results import describe_choice, describe_neurons, describe_undecided, describe_unsettled
from hmc.training.pruning.settings import PruneSettings
from hmc.training.pruning.stages import PruneProgress, Stage

DOUBT, LEAST_ERROR = 1.5, 0.08
"""A measurement is doubtful when it is further from the table than `DOUBT` times the table's largest error, or
`LEAST_ERROR` if that is larger."""
MeasureChoice = Callable[[Choice], float]


class StageClosing(Protocol):
    """What the loop of a run asks of a closing stage."""

    def decided(self, step: int) -> bool:
        """Whether no gate changes sides any more at update `step` (from 1)."""
        ...

    def decide(self, progress: PruneProgress, say: Callable[[str], None]) -> None:
        """Is called before the first update at which the stage is decided."""
        ...

    def rates(self, step: int) -> dict[str, float]:
        """Learning rates of parameter groups."""
        ...

    def penalty(self, step: int) -> Tensor:
        """Term to add to the loss (scalar)."""
        ...

    def after(self, step: int) -> None:
        """Ends an update."""
        ...

    def scalars(self, step: int) -> dict[str, float]:
        """Numbers to log."""
        ...

    def note(self, progress: PruneProgress) -> None:
        """Writes into `progress` what a resumed run needs."""
        ...

    def finish(self, progress: PruneProgress, say: Callable[[str], None]) -> None:
        """Writes what stays into `progress`, and says it."""
        ...


class BudgetClosing:
    """Closing to numbers of heads, of neurons, or both."""

    def __init__(
        self,
        stage: Stage,
        gates: HeadGates | None,
        neurons: NeuronGates | None,
        settings: PruneSettings,
        progress: PruneProgress,
    ) -> None:
        """The gates that the stage has a budget for. A stage that was interrupted goes on from `progress`."""
        self._heads, self._neurons = None, None
        if gates:
            gates.sampled()
            former = HeadLayout.from_json(progress.layout) if progress.layout else None
            self._heads = HeadClosing(gates, stage.budget, stage.steps, settings, former)
            self._heads.begin()
        if neurons and stage.neurons is not None:
            neurons.sampled()
            self._neurons = NeuronClosing(neurons, stage.neurons, stage.steps, settings, progress.neurons)
            self._neurons.begin()
        self._closings = [closing for closing in (self._heads, self._neurons) if closing]
        if progress.step and self._heads:
            self._heads.restore(progress.starts, progress.pressures)
        if progress.step and self._neurons:
            self._neurons.restore(progress.neuron_starts, progress.neuron_pressures)

    def decided(self, step: int) -> bool:
        """See `StageClosing`."""
        return self._closings[0].decided(step)

    def decide(self, progress: PruneProgress, say: Callable[[str], None]) -> None:  # noqa: ARG002 - nothing to say yet
        """Notes which gates have not decided by themselves."""
        progress.undecided = self._heads.undecided() if self._heads else {}
        progress.neurons_undecided = self._neurons.undecided() if self._neurons else 0

    def rates(self, step: int) -> dict[str, float]:
        """See `StageClosing`."""
        return {name: rate for closing in self._closings for name, rate in closing.rates(step).items()}

    def penalty(self, step: int) -> Tensor:
        """See `StageClosing`."""
        return total_penalty(self._closings, step)

    def after(self, step: int) -> None:
        """See `StageClosing`."""
        for closing in self._closings:
            closing.after(step)

    def scalars(self, step: int) -> dict[str, float]:
        """See `StageClosing`."""
        return {name: value for closing in self._closings for name, value in closing.scalars(step).items()}

    def note(self, progress: PruneProgress) -> None:
        """See `StageClosing`."""
        if self._heads:
            progress.starts, progress.pressures = self._heads.state()
        if self._neurons:
            progress.neuron_starts, progress.neuron_pressures = self._neurons.state()

    def finish(self, progress: PruneProgress, say: Callable[[str], None]) -> None:
        """See `StageClosing`."""
        if heads := self._heads:
            layout = heads.layout()
            progress.layout = layout.to_json()
            counts = {kind: sum(map(len, layout[kind])) for kind in KINDS}
            left = describe_undecided(progress.undecided) if heads.settles else describe_unsettled(heads.gates)
            say(f"{layout.total} open heads: {counts}; {left}")
        if self._neurons:
            progress.neurons = self._neurons.kept()
            say(describe_neurons(progress.neurons, progress.neurons_undecided))


class LatencyStage:
    """Closing to a latency."""

    def __init__(
        self,
        gates: ModelGates,
        plan: LatencyPlan,
        goal: LatencyGoal,
        whole_ms: float,
        steps: int,
        settings: PruneSettings,
        progress: PruneProgress,
        measure: MeasureChoice | None,
    ) -> None:
        """whole_ms: latency of the model that is pruned, by the table. measure: milliseconds of a choice of gates. A
        stage that was interrupted goes on from `progress`."""
        for each in gates.sets:
            each.sampled()
        chooser, expected = Chooser(gates, plan.table), ExpectedLatency(gates, plan.table)
        closed = closed_gates(gates, progress)
        self._closing = LatencyClosing(gates, chooser, expected, goal, whole_ms, steps, settings, closed)
        self._gates, self._goal, self._measure = gates, goal, measure
        self._doubtful = DOUBT * max(plan.table.worst_error, LEAST_ERROR)
        self._closing.begin()
        if progress.step:
            self._closing.restore(progress.latency)
        self.decided, self.rates, self.penalty = self._closing.decided, self._closing.rates, self._closing.penalty
        self.after, self.scalars = self._closing.after, self._closing.scalars

    def decide(self, progress: PruneProgress, say: Callable[[str], None]) -> None:
        """Measures and corrects the choice, and notes how many gates have not decided by themselves."""
        found = self._closing.decide(self._measure)
        for predicted, ms in zip(found.predicted, found.measured, strict=True):
            say(f"{self._goal.name}: {predicted:.2f} ms by the table, {ms:.2f} ms measured, {self._goal.ms:.2f} wanted")
        apart = [abs(ms / predicted - 1) for predicted, ms in zip(found.predicted, found.measured, strict=True)]
        if apart and max(apart) > self._doubtful:
            say(
                f"{self._goal.name}: table and measurement are {max(apart):.0%} apart. If something else runs on this "
                "machine, the choice is not to be trusted: repeat the run without it"
            )
        if found.measured and min(found.measured) > self._goal.ms:
            say(f"{self._goal.name}: no model that was measured keeps the latency; the fastest of them goes on")
        choice, undecided = self._closing.choose(), self._closing.undecided()
        progress.neurons_undecided = undecided
        tried = list(zip(found.predicted, found.measured, strict=True))
        progress.measured = {"goal_ms": self._goal.ms, "table_ms": choice.ms, "tried": tried}

    def note(self, progress: PruneProgress) -> None:
        """See `StageClosing`."""
        progress.latency = self._closing.state()

    def finish(self, progress: PruneProgress, say: Callable[[str], None]) -> None:
        """See `StageClosing`."""
        choice = self._closing.choose()
        layout, neurons, removed = kept_parts(self._gates, choice)
        progress.layout, progress.neurons = layout.to_json(), neurons
        progress.removed_layers = removed.model_dump(mode="json")
        say(describe_choice(choice.sizes, choice.ms, progress.neurons_undecided))


def kept_parts(gates: ModelGates, choice: Choice) -> tuple[HeadLayout, dict[Stack, list[list[int]]], RemovedLayers]:
    """Returns the heads, the positions of neurons and the removed layers of a choice."""
    whole = gates.heads.layout
    heads = [head for head, kept in zip(gates.heads.heads, choice.heads.tolist(), strict=True) if kept]
    layout = HeadLayout.from_heads(heads, len(whole.encoder_self), len(whole.decoder_self))
    return layout, gates.neurons.chosen(torch.from_numpy(choice.neurons.copy())), choice.sizes.removed


def closed_gates(gates: ModelGates, progress: PruneProgress) -> Tensor:
    """Returns `[total]` booleans: the gates that an earlier stage closed."""
    device = gates.owner.device
    if progress.layout is None or progress.neurons is None or progress.removed_layers is None:
        return torch.zeros(sum(each.total for each in gates.sets), dtype=torch.bool, device=device)
    kept, removed = (
        set(HeadLayout.from_json(progress.layout).heads()),
        RemovedLayers.model_validate(progress.removed_layers),
    )
    heads = torch.tensor([head not in kept for head in gates.heads.heads], device=device)
    layers = torch.tensor([layer in removed[stack] for stack, layer in gates.layers.layers], device=device)
    units = torch.cat([heads, ~gates.neurons.mask(progress.neurons)])
    closed = torch.ones(len(gates.sub_layers), dtype=torch.bool, device=device)
    closed[gates.owner[~units]] = False
    shared = closed[torch.tensor([number for number, gate in enumerate(gates.gate_of) if gate >= 0], device=device)]
    return torch.cat([units, shared, layers])
