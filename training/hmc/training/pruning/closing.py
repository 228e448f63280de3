"""A closing stage: sampled gates under pressure in every update, until an exact number of settled gates is open.

It has four phases. The budget falls; then it stays, and gates settle; then gates are pressed to decide; at last the
decision is fixed, by rank for gates that have not decided, and every log α moves to its end while the weights follow.

The λ form (`l0_lambda`) is the objective of Voita et al. 2019, L_xent + λ · L_C, and nothing more: gates that do not
settle by themselves stay unsettled. With `settle_gates` it gets the last two phases too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hmc.artifact.model.budgets import HeadBudget
from hmc.artifact.model.ffn import Neurons, Stack
from hmc.artifact.model.heads import HeadLayout
from hmc.training.pruning.gate_sets import GateSet, HeadGates, NeuronGates
from hmc.training.pruning.pressure import BudgetPressure, decision_penalty, l0_penalty, sure_log_alpha, top
from hmc.training.pruning.settings import PruneSettings

BUDGET_FALLS = 0.6
"""Share of the updates over which the budget falls to its target."""
PRESS_FROM, PRESS_WEIGHT = 0.7, 3.0
"""Share of the updates after which gates are pressed to decide, and the weight that this penalty grows to."""
DECIDED_FROM = 0.85
"""Share of the updates after which no gate changes sides."""
TRAVEL = 12.0
"""Distance that log α may have to move while the budget falls; it sets the smallest learning rate of the gates."""
Gates = TypeVar("Gates", bound=GateSet)


class Closing(Generic[Gates]):
    """One closing stage of one set of gates. Add `penalty` to the loss of an update, and call `after` when it is done.

    Neither makes a GPU wait.
    """

    group: str
    """Name of the optimiser's parameter group of the gates."""

    def __init__(
        self,
        gates: Gates,
        parts: Sequence[tuple[Tensor, int]],
        closed: Tensor,
        steps: int,
        settings: PruneSettings,
    ) -> None:
        """parts: positions of gates, and how many of them end open; none in the λ form. steps: updates of the stage.

        closed: `[total]` booleans, gates that an earlier stage closed. They are 0 in every draw and count in no budget.
        """
        gates.close(closed)
        self.gates, self.closed, self.steps, self.settings = gates, closed, steps, settings
        left = [(positions[~closed[positions]], number) for positions, number in parts]
        self.parts = [(positions, number) for positions, number in left if len(positions)]
        self.remaining = (~closed).nonzero()[:, 0]
        """Positions of the gates that this stage may close."""
        self.held = gates.log_alpha().detach().clone() if bool(closed.any()) else None
        """`[total]` log α at the start of the stage; None when no gate is closed."""
        self.settles = settings.l0_lambda is None or settings.settle_gates
        self.starts: list[float] = []
        self.pressures = [BudgetPressure(len(positions), device=closed.device) for positions, _ in self.parts]

    def begin(self) -> None:
        """Notes the expected number of open gates now: budgets fall from there."""
        expected = self.gates.open_probabilities().detach()
        self.starts = [float(expected[positions].sum()) for positions, _ in self.parts]

    def restore(self, starts: Sequence[float], pressures: Sequence[dict[str, float]]) -> None:
        """Continues from the values that `state` returned."""
        self.starts = list(starts)
        self.pressures = [
            BudgetPressure(len(positions), saved["linear"], saved["quadratic"], saved["rate"], self.closed.device)
            for (positions, _), saved in zip(self.parts, pressures, strict=True)
        ]

    def state(self) -> tuple[list[float], list[dict[str, float]]]:
        """Returns the arguments of `restore` as JSON values."""
        return self.starts, [pressure.to_json() for pressure in self.pressures]

    def decided(self, step: int) -> bool:
        """True in the last phase, when no gate changes sides any more."""
        return self.settles and step > DECIDED_FROM * self.steps

    def rates(self, step: int) -> dict[str, float]:
        """Returns the learning rates of parameter groups at update `step` (from 1) of the stage."""
        least = TRAVEL / (BUDGET_FALLS * self.steps)
        gates = 0.0 if self.decided(step) else max(self.settings.gate_rate, least)
        return {"weights": self.settings.learning_rate, self.group: gates}

    def budgets(self, step: int) -> list[float]:
        """Returns the budget of each part at update `step`: the number of gates that should be open in expectation."""
        fallen = min(1.0, step / self.steps / BUDGET_FALLS)
        return [start + (number - start) * fallen for start, (_, number) in zip(self.starts, self.parts, strict=True)]

    def penalty(self, step: int) -> Tensor:
        """Returns the term to add to a loss in nats per token at update `step` (scalar)."""
        expected, log_alpha = self.gates.open_probabilities(), self.gates.log_alpha()
        if self.settings.l0_lambda is not None:
            penalty = l0_penalty(expected, self.settings.l0_lambda)
        else:
            penalty = expected.new_zeros(())
            for (positions, _), budget, pressure in zip(self.parts, self.budgets(step), self.pressures, strict=True):
                penalty = penalty + pressure.penalty(expected[positions], budget)
        ramp = (step / self.steps - PRESS_FROM) / (DECIDED_FROM - PRESS_FROM)
        if self.settles and ramp > 0 and not self.decided(step):
            keep = self._keep(log_alpha)[self.remaining]
            penalty = penalty + PRESS_WEIGHT * ramp * decision_penalty(log_alpha[self.remaining], keep)
        return penalty

    def after(self, step: int) -> None:
        """Ends update `step`: raises the multipliers, and in the last phase moves every log α towards its end.

        Adam's momentum from the stage before would still move the log α of closed gates; they are set back.
        """
        expected = self.gates.open_probabilities().detach()
        for (positions, _), pressure, budget in zip(self.parts, self.pressures, self.budgets(step), strict=True):
            pressure.ascend(expected[positions].sum(), budget)
        if self.held is not None:
            self.gates.set_log_alpha(torch.where(self.closed, self.held, self.gates.log_alpha().detach()))
        if self.decided(step):
            log_alpha = self.gates.log_alpha().detach()
            keep, own = self._keep(log_alpha)[self.remaining], log_alpha[self.remaining]
            moved = own + (sure_log_alpha(own, keep) - own) / (self.steps - step + 1)
            self.gates.set_log_alpha(log_alpha.index_copy(0, self.remaining, moved))

    def _keep(self, log_alpha: Tensor) -> Tensor:
        """`[total]` booleans: the gates that stay open if the decision is made now.

        These are the gates of highest log α of each part, or in the λ form all gates with P(g = 1) > P(g = 0), that is
        log α > 0 (Voita et al. 2019, footnote 7).
        """
        log_alpha = log_alpha.detach()
        if self.settings.l0_lambda is not None:
            return (log_alpha > 0) & ~self.closed
        keep = torch.zeros_like(log_alpha, dtype=torch.bool)
        for positions, number in self.parts:
            keep[positions] = top(log_alpha[positions], number)
        return keep

    def _undecided(self, unsettled: Tensor) -> Tensor:
        """`[total]` booleans: the gates that a decision now would force: unsettled ones, and ones that change sides."""
        log_alpha = self.gates.log_alpha().detach()
        return ((self._keep(log_alpha) != (log_alpha > 0)) | unsettled) & ~self.closed


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
        """budget: None for the λ form. within: layout left by the stage before; heads outside it stay closed."""
        kept = set((within or gates.layout).heads())
        closed = torch.tensor([head not in kept for head in gates.heads], device=gates.log_alpha().device)
        parts = [(gates.positions(kinds), heads) for kinds, heads in budget.parts] if budget else []
        cross = gates.positions(("cross",))
        self._cross = cross[~closed[cross]]
        super().__init__(gates, parts, closed, steps, settings)

    def _keep(self, log_alpha: Tensor) -> Tensor:
        """As `Closing._keep`, but the cross-attention head of highest log α always stays.

        This changes something only where no such head would stay: the decoder could then not see the source.
        """
        log_alpha = log_alpha.detach()
        if len(self._cross):
            best = self._cross[log_alpha[self._cross].argmax(0, keepdim=True)]
            log_alpha = log_alpha.index_fill(0, best, torch.inf)
        return super()._keep(log_alpha)

    def undecided(self) -> dict[str, float]:
        """Returns the gates (named KIND.LAYER.HEAD) that a decision now would force, with their P(g ≠ 0)."""
        unsettled = self.gates.unsettled()
        flags = torch.tensor([head in unsettled for head in self.gates.heads], device=self.closed.device)
        rows = zip(
            self.gates.heads, self._undecided(flags).tolist(), self.gates.open_probabilities().tolist(), strict=True
        )
        return {str(head): probability for head, is_undecided, probability in rows if is_undecided}

    def scalars(self, step: int) -> dict[str, float]:
        """Returns numbers to log: budget, expected open heads in all and by kind, gates that have not settled."""
        by_kind = self.gates.expected_open()
        found = {"budget": sum(self.budgets(step))} if self.parts else {}
        found |= {"open": sum(by_kind.values()), "unsettled": float(len(self.gates.unsettled()))}
        return found | {f"open/{kind}": value for kind, value in by_kind.items()}

    def layout(self) -> HeadLayout:
        """Returns the model's layout without the heads whose gates are not kept."""
        keep = self._keep(self.gates.log_alpha()).tolist()
        removed = {head for head, is_kept in zip(self.gates.heads, keep, strict=True) if not is_kept}
        whole = self.gates.layout
        kept = [head for head in whole.heads() if head not in removed]
        return HeadLayout.from_heads(kept, len(whole.encoder_self), len(whole.decoder_self))


class NeuronClosing(Closing[NeuronGates]):
    """Closing of feed-forward neurons. There are thousands, so reports count them, where they name heads."""

    group = "neurons"

    def __init__(
        self, gates: NeuronGates, number: int, steps: int, settings: PruneSettings, within: Neurons | None = None
    ) -> None:
        """number: neurons of the whole model that end open. within: neurons that the stage before left open."""
        every = torch.ones_like(gates.log_alpha(), dtype=torch.bool)
        closed = ~gates.mask(within) if within else ~every
        super().__init__(gates, [(every.nonzero()[:, 0], number)], closed, steps, settings)

    def undecided(self) -> int:
        """Returns the number of gates that a decision now would force."""
        return int(self._undecided(self.gates.unsettled()).sum())

    def scalars(self, step: int) -> dict[str, float]:
        """Returns numbers to log: budget, expected open neurons in all and by stack, gates that have not settled."""
        by_stack = self.gates.expected_open()
        found = {"neuron_budget": sum(self.budgets(step)), "neurons": sum(by_stack.values())}
        found["neurons_unsettled"] = float(self.gates.unsettled().sum())
        return found | {f"neurons/{stack}": value for stack, value in by_stack.items()}

    def kept(self) -> dict[Stack, list[list[int]]]:
        """Returns the positions of the neurons whose gates are kept, in every layer."""
        return self.gates.chosen(self._keep(self.gates.log_alpha()))


def total_penalty(closings: Sequence[Closing[Any]], step: int) -> Tensor:
    """Returns the sum of the penalties of several closings at update `step` (nats per token, scalar)."""
    return torch.stack([closing.penalty(step) for closing in closings]).sum()
