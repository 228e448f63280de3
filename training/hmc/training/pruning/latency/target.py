"""A latency as the target of a closing stage: one expected latency is the budget of heads, neurons and layers.

Before the decision is fixed, the chosen model is measured, and the choice is corrected until its measured latency keeps
the goal: the last phase and the recovery train exactly the model that was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from hmc.artifact.model.ffn import Stack
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.pruning.latency.choice import Choice, Chooser
from hmc.training.pruning.latency.expected import ExpectedLatency, ModelGates
from hmc.training.pruning.pressure import BudgetPressure
from hmc.training.pruning.results import describe_choice
from hmc.training.pruning.schedule import ClosingTarget, Say
from hmc.training.pruning.stages import LatencyGoal, LatencyPlan, PruneProgress

TRIES = 5
"""Models that are measured at most for one goal."""
SLACK = 0.04
"""A model that is faster than its goal by more than this share is given more to keep, while tries are left."""
MARGIN = 0.99
"""Share of the goal that corrections aim at."""
DOUBT = 1.5
LEAST_ERROR = 0.08
"""A measurement is doubtful when it is further from the table than `DOUBT` times the table's largest error, or
`LEAST_ERROR` if that is larger."""
MeasureChoice = Callable[[Choice], float]


class LatencyTarget(ClosingTarget):
    """A latency as a target, to which heads, neurons, sub-layers and layers close."""

    def __init__(
        self,
        gates: ModelGates,
        plan: LatencyPlan,
        goal: LatencyGoal,
        whole_ms: float,
        progress: PruneProgress,
        measure: MeasureChoice | None,
    ) -> None:
        """whole_ms: latency of the model that is pruned with all gates open, by the table. progress: tells which gates
        earlier stages closed. measure: milliseconds of a choice of gates."""
        closed = closed_gates(gates, progress)
        self.gates = gates
        self.goal = goal
        self._measure = measure
        self.measures = measure is not None
        self._expected = ExpectedLatency(gates, plan.table)
        self._chooser = Chooser(gates, plan.table)
        self._closed = closed.cpu().numpy()
        self._doubtful = DOUBT * max(plan.table.worst_error, LEAST_ERROR)
        self.sets = gates.sets
        for own, part in zip(self.sets, gates.split(closed), strict=True):
            own.close(part)
        self.aim = goal.ms * MARGIN
        """Latency by the table that the choice has to keep; corrected by what is measured."""
        self.fixed: Choice | None = None
        """The choice, once it is made."""
        self._seen: tuple[bytes, Choice] | None = None
        self.start = 0.0
        self._pressure = BudgetPressure(whole_ms, device=closed.device)

    def begin(self) -> None:
        self.start = float(self._expected().detach())

    def restore(self, progress: PruneProgress) -> None:
        saved = progress.latency
        self.start = saved["start"]
        self.aim = saved["aim"]
        self._pressure.restore(saved["pressure"])
        if saved["fixed"]:
            self.fixed = self._chooser.restored(np.array(saved["fixed"], bool))

    def note(self, progress: PruneProgress) -> None:
        kept = np.concatenate(self.fixed.parts).tolist() if self.fixed else []
        pressure = self._pressure.to_json()
        progress.latency = {"start": self.start, "aim": self.aim, "pressure": pressure, "fixed": kept}

    def budget(self, fallen: float) -> float:
        """Returns the expected latency that the model should have, in milliseconds."""
        return self.start + (self.aim - self.start) * fallen

    def pressure(self, fallen: float) -> Tensor:
        return self._pressure.penalty_of(self._expected(), self.budget(fallen))

    def ascend(self, fallen: float) -> None:
        self._pressure.ascend(self._expected().detach(), self.budget(fallen))

    def keep(self) -> list[Tensor]:
        """Returns the gates of the choice. Until it is fixed, choosing makes a GPU wait."""
        device = self.gates.owner.device
        return [torch.from_numpy(part.copy()).to(device) for part in self.choose().parts]

    def choose(self) -> Choice:
        """Returns the gates that stay by the decision, or that would stay if it were made now."""
        if self.fixed:
            return self.fixed
        log_alpha = self.gates.log_alpha().detach().float().cpu().numpy()
        key = log_alpha.tobytes()
        if self._seen is None or self._seen[0] != key:
            self._seen = key, self._chooser.choose(log_alpha, self._closed, self.aim)
        return self._seen[1]

    def decide(self, progress: PruneProgress, say: Say) -> None:
        """Fixes which gates stay: measures and corrects the choice, and notes how many gates have not decided."""
        tried = self._tried()
        kept = [pair for pair in tried if pair[0] <= self.goal.ms]
        if kept:
            _, choice = max(kept, key=itemgetter(0))
        elif tried:
            _, choice = min(tried, key=itemgetter(0))
        else:
            choice = self.choose()
        self.fixed = choice
        pairs = [(each.ms, ms) for ms, each in tried]
        self._report(pairs, say)
        undecided = [gates.undecided(keep) for gates, keep in zip(self.sets, self.keep(), strict=True)]
        progress.neurons_undecided = int(torch.cat(undecided).sum())
        progress.measured = {"goal_ms": self.goal.ms, "table_ms": choice.ms, "tried": pairs}

    def _tried(self) -> list[tuple[float, Choice]]:
        """Measures choices, corrected until the measured latency keeps the goal; returns their milliseconds."""
        tried: list[tuple[float, Choice]] = []
        for _ in range(TRIES if self._measure else 0):
            assert self._measure
            choice = self.choose()
            if any(choice.sizes == other.sizes for _, other in tried):
                break
            ms = self._measure(choice)
            tried.append((ms, choice))
            if self.goal.ms * (1 - SLACK) <= ms <= self.goal.ms:
                break
            self.aim = choice.ms * self.goal.ms * MARGIN / ms
            self._seen = None
        return tried

    def _report(self, tried: list[tuple[float, float]], say: Say) -> None:
        """tried: milliseconds by the table, and measured, of each model that was measured."""
        name = self.goal.name
        for predicted, ms in tried:
            say(f"{name}: {predicted:.2f} ms by the table, {ms:.2f} ms measured, {self.goal.ms:.2f} wanted")
        apart = max((abs(ms / predicted - 1) for predicted, ms in tried), default=0.0)
        if apart > self._doubtful:
            say(
                f"{name}: table and measurement are {apart:.0%} apart. If something else runs on this machine, the "
                "choice is not to be trusted: repeat the run without it"
            )
        if tried and min(ms for _, ms in tried) > self.goal.ms:
            say(f"{name}: no model that was measured keeps the latency; the fastest of them goes on")

    def scalars(self, fallen: float) -> dict[str, float]:
        """Returns budget and expected latency in milliseconds, expected open gates of every set."""
        scalars = {"latency_budget_ms": self.budget(fallen), "latency_ms": float(self._expected().detach())}
        for name, gates in zip(("open", "neurons", "sub_layers", "layers"), self.sets, strict=True):
            scalars[name] = float(gates.open_probabilities().detach().sum())
        return scalars

    def finish(self, progress: PruneProgress, say: Say) -> None:
        choice = self.choose()
        layout, neurons, removed = kept_parts(self.gates, choice)
        progress.layout = layout.to_json()
        progress.neurons = neurons
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
    removed = progress.removed
    if progress.heads is None or progress.neurons is None or removed is None:
        return torch.zeros(sum(own.total for own in gates.sets), dtype=torch.bool, device=device)
    kept = set(progress.heads.heads())
    heads = torch.tensor([head not in kept for head in gates.heads.heads], device=device)
    layers = torch.tensor([layer in removed[stack] for stack, layer in gates.layers.layers], device=device)
    units = torch.cat([heads, ~gates.neurons.mask(progress.neurons)])
    closed = torch.ones(len(gates.sub_layers), dtype=torch.bool, device=device)
    closed[gates.owner[~units]] = False
    shared = closed[torch.tensor([number for number, gate in enumerate(gates.gate_of) if gate >= 0], device=device)]
    return torch.cat([units, shared, layers])
