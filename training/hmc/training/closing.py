"""A closing stage: pressure on sampled gates at every update, from where they stand to an exact, settled budget.

Four phases: the budget falls; it stands and gates sort themselves out; they are pressed to decide; and at last the
decision is made, by rank where gates have not decided, and every gate goes to its end while the weights follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hmc.artifact.budgets import HeadBudget
from hmc.artifact.ffn import Neurons, Stack
from hmc.artifact.heads import HeadLayout
from hmc.training.gating import GateSet, HeadGates
from hmc.training.lagrangian import BudgetPressure, decision_penalty, l0_penalty, sure_log_alpha, top
from hmc.training.neurons import NeuronGates
from hmc.training.prune_settings import PruneSettings

BUDGET_FALLS = 0.6
"""Share of the steps over which the budget falls to its target."""
PRESS_FROM, PRESS_WEIGHT = 0.7, 3.0
"""Share of the steps from which gates are pressed to decide, and the weight this grows to, in nats per token."""
DECIDED_FROM = 0.85
"""Share of the steps after which no gate changes sides."""
TRAVEL = 12.0
"""How far log α may have to go while the budget falls; sets the least rate of the gates."""
Gates = TypeVar("Gates", bound=GateSet)


class Closing(Generic[Gates]):
    """One closing stage of one set of gates; `penalty` goes into the loss of an update and `after` follows it."""

    group: str
    """Name of the gates' parameter group."""

    def __init__(
        self,
        gates: Gates,
        parts: Sequence[tuple[Tensor, int]],
        barred: Tensor,
        steps: int,
        settings: PruneSettings,
    ) -> None:
        """parts: positions of gates, and how many of them end open; none in the λ form, with settings.l0_lambda.

        barred: `[total]` booleans, gates that an earlier stage closed. They stay closed, so that levels are nested.
        """
        self.gates, self.parts, self.barred, self.steps, self.settings = gates, list(parts), barred, steps, settings
        self.starts: list[float] = []
        self.pressures = [BudgetPressure(len(positions)) for positions, _ in self.parts]

    def begin(self) -> None:
        """Notes where the gates stand now: budgets fall from there."""
        expected = self.gates.open_probabilities().detach()
        self.starts = [float(expected[positions].sum()) for positions, _ in self.parts]

    def restore(self, starts: Sequence[float], pressures: Sequence[dict[str, float]]) -> None:
        """Goes on with the values of a saved run."""
        self.starts = list(starts)
        self.pressures = [BudgetPressure(int(p["total"]), p["linear"], p["quadratic"], p["rate"]) for p in pressures]

    def state(self) -> tuple[list[float], list[dict[str, float]]]:
        """What `restore` needs, as plain values."""
        return self.starts, [pressure.to_json() for pressure in self.pressures]

    def decided(self, step: int) -> bool:
        """True in the last phase."""
        return step > DECIDED_FROM * self.steps

    def rates(self, step: int) -> dict[str, float]:
        """Learning rates of update `step` (from 1) of the stage."""
        least = TRAVEL / (BUDGET_FALLS * self.steps)
        gates = 0.0 if self.decided(step) else max(self.settings.gate_rate, least)
        return {"weights": self.settings.learning_rate, self.group: gates}

    def budgets(self, step: int) -> list[float]:
        """What each part's expected open gates should be at update `step`."""
        fallen = min(1.0, step / self.steps / BUDGET_FALLS)
        return [start + (number - start) * fallen for start, (_, number) in zip(self.starts, self.parts, strict=True)]

    def penalty(self, step: int) -> Tensor:
        """The term to add to a loss in nats per token at update `step`."""
        expected, log_alpha = self.gates.open_probabilities(), self.gates.log_alpha()
        if not self.parts:
            penalty = l0_penalty(expected, self.settings.l0_lambda or 0.0)
        else:
            penalty = expected.new_zeros(())
            for (positions, _), budget, pressure in zip(self.parts, self.budgets(step), self.pressures, strict=True):
                penalty = penalty + pressure.penalty(expected[positions], budget)
        ramp = (step / self.steps - PRESS_FROM) / (DECIDED_FROM - PRESS_FROM)
        if ramp > 0 and not self.decided(step):
            penalty = penalty + PRESS_WEIGHT * ramp * decision_penalty(log_alpha, self._keep(log_alpha))
        return penalty

    def after(self, step: int) -> None:
        """Follows update `step`: raises the multipliers; in the last phase moves every gate towards its end."""
        if self.parts:
            expected = self.gates.open_probabilities().detach()
            sums = torch.stack([expected[positions].sum() for positions, _ in self.parts]).tolist()
            for pressure, found, budget in zip(self.pressures, sums, self.budgets(step), strict=True):
                pressure.ascend(found, budget)
        if self.decided(step):
            log_alpha = self.gates.log_alpha().detach()
            end = sure_log_alpha(log_alpha, self._keep(log_alpha))
            self.gates.set_log_alpha(log_alpha + (end - log_alpha) / (self.steps - step + 1))

    def _keep(self, log_alpha: Tensor) -> Tensor:
        """`[total]` booleans: gates that stay open if it is decided now.

        The best of each part by log α; in the λ form those with P(g = 1) > P(g = 0) (Voita et al. 2019, footnote 7).
        """
        log_alpha = log_alpha.detach().masked_fill(self.barred, -torch.inf)
        if not self.parts:
            return log_alpha > 0
        keep = torch.zeros_like(log_alpha, dtype=torch.bool)
        for positions, number in self.parts:
            keep[positions] = top(log_alpha[positions], number)
        return keep

    def _undecided(self, unsettled: Tensor) -> Tensor:
        """`[total]` booleans: gates that a decision now would not leave to themselves.

        Those that have not settled, and those that go to the side they are not on because of the budget.
        """
        log_alpha = self.gates.log_alpha().detach()
        return (self._keep(log_alpha) != (log_alpha > 0)) | unsettled


class HeadClosing(Closing[HeadGates]):
    """Closing of heads."""

    group = "gates"

    def __init__(
        self,
        gates: HeadGates,
        budget: HeadBudget | None,
        steps: int,
        settings: PruneSettings,
        within: HeadLayout | None = None,
    ) -> None:
        """budget: None for the λ form. within: layout of the budget before, which the new one will be contained in."""
        kept = set((within or gates.layout).heads())
        barred = torch.tensor([head not in kept for head in gates.heads], device=gates.log_alpha().device)
        found = [(gates.positions(kinds), heads) for kinds, heads in budget.parts] if budget else []
        parts = [(positions, heads) for positions, heads in found if len(positions)]  # of no heads none can close
        super().__init__(gates, parts, barred, steps, settings)

    def undecided(self) -> dict[str, float]:
        """Gates (named KIND.LAYER.HEAD) that are decided by rank if it is decided now, with their P(g ≠ 0)."""
        unsettled = self.gates.unsettled()
        flags = torch.tensor([head in unsettled for head in self.gates.heads], device=self.barred.device)
        rows = zip(
            self.gates.heads, self._undecided(flags).tolist(), self.gates.open_probabilities().tolist(), strict=True
        )
        return {str(head): probability for head, is_undecided, probability in rows if is_undecided}

    def scalars(self, step: int) -> dict[str, float]:
        """What to log: the budget, expected open heads in all and by kind, gates that have not settled."""
        by_kind = self.gates.expected_open()
        found = {"budget": sum(self.budgets(step))} if self.parts else {}
        found |= {"open": sum(by_kind.values()), "unsettled": float(len(self.gates.unsettled()))}
        return found | {f"open/{kind}": value for kind, value in by_kind.items()}

    def layout(self) -> HeadLayout:
        """The model's layout without the heads whose gates are not kept."""
        keep = self._keep(self.gates.log_alpha()).tolist()
        closed = {head for head, is_kept in zip(self.gates.heads, keep, strict=True) if not is_kept}
        whole = self.gates.layout
        kept = [head for head in whole.heads() if head not in closed]
        return HeadLayout.from_heads(kept, len(whole.encoder_self), len(whole.decoder_self))


class NeuronClosing(Closing[NeuronGates]):
    """Closing of feed-forward neurons. There are thousands: they are counted where heads are named."""

    group = "neurons"

    def __init__(
        self, gates: NeuronGates, number: int, steps: int, settings: PruneSettings, within: Neurons | None = None
    ) -> None:
        """number: neurons that end open over the whole model. within: those that the budget before left."""
        every = torch.ones_like(gates.log_alpha(), dtype=torch.bool)
        barred = ~gates.mask(within) if within else ~every
        super().__init__(gates, [(every.nonzero()[:, 0], number)], barred, steps, settings)

    def undecided(self) -> int:
        """How many gates are decided by rank if it is decided now."""
        return int(self._undecided(self.gates.unsettled()).sum())

    def scalars(self, step: int) -> dict[str, float]:
        """What to log: the budget, expected open neurons in all and by stack, gates that have not settled."""
        by_stack = self.gates.expected_open()
        found = {"neuron_budget": sum(self.budgets(step)), "neurons": sum(by_stack.values())}
        found["neurons_unsettled"] = float(self.gates.unsettled().sum())
        return found | {f"neurons/{stack}": value for stack, value in by_stack.items()}

    def kept(self) -> dict[Stack, list[list[int]]]:
        """Positions of the neurons whose gates are kept, in every layer."""
        return self.gates.chosen(self._keep(self.gates.log_alpha()))


def total_penalty(closings: Sequence[Closing[Any]], step: int) -> Tensor:
    """The sum of the terms of several closings to add to a loss in nats per token at update `step`."""
    return torch.stack([closing.penalty(step) for closing in closings]).sum()
