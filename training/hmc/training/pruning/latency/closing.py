"""Closing to a latency: the phases of `Closing`, with one expected latency as the budget of heads, neurons and layers.

Before the decision is fixed, the chosen model is measured, and the choice is corrected until its measured latency keeps
the goal: the last phase and the recovery train exactly the model that was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmc.training.pruning.closing import BUDGET_FALLS, Closing
from hmc.training.pruning.gate_sets import GateSet
from hmc.training.pruning.latency.choice import Choice, Chooser
from hmc.training.pruning.latency.expected import ExpectedLatency, ModelGates
from hmc.training.pruning.latency.goals import LatencyGoal
from hmc.training.pruning.pressure import BudgetPressure
from hmc.training.pruning.settings import PruneSettings

TRIES = 5
"""Models that are measured at most for one goal."""
SLACK = 0.04
"""A model that is faster than its goal by more than this share is given more to keep, while tries are left."""
MARGIN = 0.99
"""Share of the goal that corrections aim at."""


@dataclass
class Measured:
    """What was measured before the decision."""

    predicted: list[float] = field(default_factory=list)
    """Milliseconds by the table, of each model that was measured."""
    measured: list[float] = field(default_factory=list)
    """Milliseconds of the same models on this machine."""


class PartClosing(Closing[GateSet]):
    """One of the four sets of gates. Which of them stay is chosen for all sets together."""

    def __init__(
        self,
        gates: GateSet,
        group: str,
        closed: Tensor,
        steps: int,
        settings: PruneSettings,
        chosen: Callable[[], Tensor],
    ) -> None:
        """group: the optimiser's parameter group. chosen: returns `[total]` booleans, the gates that stay."""
        super().__init__(gates, [], closed, steps, settings)
        self.group, self._chosen = group, chosen

    def _keep(self, log_alpha: Tensor) -> Tensor:
        return self._chosen().to(log_alpha.device)

    def undecided(self, unsettled: Tensor) -> int:
        """Number of gates that a decision now would force."""
        return int(self._undecided(unsettled).sum())


class LatencyClosing:
    """One closing stage of heads, neurons and layers. Used like `Closing`."""

    def __init__(
        self,
        gates: ModelGates,
        chooser: Chooser,
        expected: ExpectedLatency,
        goal: LatencyGoal,
        whole_ms: float,
        steps: int,
        settings: PruneSettings,
        closed: Tensor,
    ) -> None:
        """whole_ms: latency of the model with all gates open, by the table. closed: `[total]` booleans, gates that an
        earlier stage closed."""
        self.gates, self.goal, self.steps, self._expected = gates, goal, steps, expected
        self._chooser, self._closed = chooser, closed.cpu().numpy()
        self.aim = goal.ms * MARGIN
        """Latency by the table that the choice has to keep; corrected by what is measured."""
        self.fixed: Choice | None = None
        """The choice, once it is made."""
        self._seen: tuple[bytes, Choice] | None = None
        self.parts = [
            PartClosing(each, group, own, steps, settings, lambda n=number: self._of_part(n))  # type: ignore[misc]
            for number, (each, group, own) in enumerate(
                zip(gates.sets, ("gates", "neurons", "sub_layers", "layers"), gates.split(closed), strict=True)
            )
        ]
        self.start = 0.0
        self.pressure = BudgetPressure(whole_ms, device=closed.device)

    def begin(self) -> None:
        """Notes the expected latency now: the budget falls from there."""
        self.start = float(self._expected().detach())

    def decided(self, step: int) -> bool:
        """True in the last phase, when no gate changes sides any more."""
        return self.parts[0].decided(step)

    def rates(self, step: int) -> dict[str, float]:
        """Returns the learning rates of parameter groups at update `step` (from 1) of the stage."""
        return {name: rate for part in self.parts for name, rate in part.rates(step).items()}

    def budget(self, step: int) -> float:
        """Returns the expected latency that the model should have at update `step`, in milliseconds."""
        return self.start + (self.aim - self.start) * min(1.0, step / self.steps / BUDGET_FALLS)

    def penalty(self, step: int) -> Tensor:
        """Returns the term to add to a loss in nats per token at update `step` (scalar)."""
        decisions = torch.stack([part.penalty(step) for part in self.parts]).sum()
        return self.pressure.penalty_of(self._expected(), self.budget(step)) + decisions

    def after(self, step: int) -> None:
        """Ends update `step`, as `Closing.after` does."""
        self.pressure.ascend(self._expected().detach(), self.budget(step))
        for part in self.parts:
            part.after(step)

    def choose(self) -> Choice:
        """Returns the gates that stay if the decision is made now, or as it was made."""
        if self.fixed:
            return self.fixed
        log_alpha = self.gates.log_alpha().detach().float().cpu().numpy()
        key = log_alpha.tobytes()
        if self._seen is None or self._seen[0] != key:
            self._seen = key, self._chooser.choose(log_alpha, self._closed, self.aim)
        return self._seen[1]

    def decide(self, measure: Callable[[Choice], float] | None) -> Measured:
        """Fixes which gates stay. With `measure`, the choice is corrected until the measured latency keeps the goal.

        When no try keeps it, the fastest model that was measured stays.
        """
        found, tried = Measured(), list[tuple[float, Choice]]()
        for _ in range(TRIES if measure else 0):
            assert measure
            choice = self.choose()
            if any(choice.sizes == other.sizes for _, other in tried):
                break
            ms = measure(choice)
            tried.append((ms, choice))
            found.predicted.append(choice.ms)
            found.measured.append(ms)
            if self.goal.ms * (1 - SLACK) <= ms <= self.goal.ms:
                break
            self.aim, self._seen = choice.ms * self.goal.ms * MARGIN / ms, None
        kept = [(ms, choice) for ms, choice in tried if ms <= self.goal.ms]
        best = max(kept, key=lambda pair: pair[0]) if kept else min(tried, key=lambda pair: pair[0], default=None)
        self.fixed = best[1] if best else self.choose()
        return found

    def fix(self, kept: list[bool]) -> None:
        """Makes the decision that a former process made: which of all gates stay."""
        self.fixed = self._chooser.restored(np.array(kept, bool))

    def undecided(self) -> int:
        """Returns the number of gates that a decision now would force."""
        return sum(
            part.undecided((p := part.gates.open_probabilities().detach()).ge(0.05) & p.le(0.95)) for part in self.parts
        )

    def scalars(self, step: int) -> dict[str, float]:
        """Returns numbers to log: budget and expected latency in milliseconds, expected open gates of every set."""
        names = ("open", "neurons", "sub_layers", "layers")
        open_ = {
            name: float(p.gates.open_probabilities().detach().sum()) for name, p in zip(names, self.parts, strict=True)
        }
        return {"latency_budget_ms": self.budget(step), "latency_ms": float(self._expected().detach()), **open_}

    def state(self) -> dict[str, Any]:
        """Returns what `restore` needs as JSON values."""
        fixed = self.fixed
        kept = np.concatenate(fixed.parts).tolist() if fixed else []
        return {"start": self.start, "aim": self.aim, "pressure": self.pressure.to_json(), "fixed": kept}

    def restore(self, saved: dict[str, Any]) -> None:
        """Continues from what `state` returned."""
        self.start, self.aim, former = saved["start"], saved["aim"], saved["pressure"]
        self.pressure = BudgetPressure(
            former["total"], former["linear"], former["quadratic"], former["rate"], self.pressure.linear.device
        )
        if saved["fixed"]:
            self.fix(saved["fixed"])

    def _of_part(self, number: int) -> Tensor:
        choice = self.choose()
        return torch.from_numpy(choice.parts[number].copy())
