"""Pressure on gates: λ · L_C as in Voita et al. 2019, or an augmented Lagrangian that ends at an exact head budget.

The Lagrangian is that of Wang et al. 2020 ("Structured Pruning of Large Language Models", section 3.3):
λ₁ (s - t) + λ₂ (s - t)², s the expected share of open heads, t the target share, λ₁ and λ₂ raised by gradient ascent.
It fixes how many heads are open in expectation, not that each gate decides: `decision_penalty` asks for that, and
`sure_log_alpha` is where each gate has to end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import Tensor
from torch.nn import functional

from hmc.training.gates import CERTAINTY

SURE, SUREST = 5.0, 8.0
"""Range of |log α| of settled gates: P(g = 0) or P(g = 1) is 0.98 or more, and a further stage can still turn them."""


@dataclass
class BudgetPressure:
    """Drives the expected number of open heads among `total` to a budget."""

    total: int
    linear: float = 0.0
    """λ₁."""
    quadratic: float = 50.0
    """λ₂; it starts high, so that the expected number of open heads follows the budget from the first update."""
    rate: float = 0.2
    """Step of the ascent on both multipliers."""

    def penalty(self, open_probabilities: Tensor, budget: float) -> Tensor:
        """open_probabilities `[total]`, budget in heads → the term to add to a loss in nats per token."""
        gap = open_probabilities.mean() - budget / self.total
        return self.linear * gap + self.quadratic * gap**2

    def ascend(self, expected_open: float, budget: float) -> None:
        """Raises the multipliers after an update that left `expected_open` heads open in expectation."""
        gap = (expected_open - budget) / self.total
        self.linear += self.rate * gap
        self.quadratic += self.rate * gap**2

    def to_json(self) -> dict[str, float]:
        """Plain values, for resuming."""
        return asdict(self)


def l0_penalty(open_probabilities: Tensor, strength: float) -> Tensor:
    """λ · Σ P(g ≠ 0) (Voita et al. 2019, section 6.1)."""
    return strength * open_probabilities.sum()


def decision_penalty(log_alpha: Tensor, keep: Tensor) -> Tensor:
    """Mean of -log P(g = 1) over gates to keep open and of -log P(g = 0) over the rest.

    log_alpha `[N]`, keep `[N]` booleans. Voita et al. 2019 (section 6.1) find that gates settle on their own, which is
    not so for the few around a budget's edge: nothing in L_C prefers one sure head to two that are open half the time.
    """
    side = keep.to(log_alpha.dtype) * 2 - 1
    return functional.softplus(CERTAINTY - side * log_alpha).mean()


def top(log_alpha: Tensor, number: int) -> Tensor:
    """`[N]` booleans: True for the `number` gates of highest log α."""
    keep = log_alpha.new_zeros(log_alpha.shape).bool()
    return keep.index_fill_(0, log_alpha.topk(number).indices, True)


def sure_log_alpha(log_alpha: Tensor, keep: Tensor) -> Tensor:
    """log α `[N]` moved apart: gates to keep into [SURE, SUREST], the rest into [-SUREST, -SURE], in the same order."""
    values = log_alpha.detach()
    sure = values.clone()
    for side, chosen in ((1.0, keep), (-1.0, ~keep)):
        strength = side * values[chosen]
        if len(strength):
            low, high = strength.min(), strength.max()
            spread = ((SUREST - SURE) / (high - low).clamp(min=1e-6)).clamp(max=1.0)
            sure[chosen] = side * (SURE + (strength - low) * spread)
    return sure
