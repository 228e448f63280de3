"""Pressure on gates: λ · L_C as in Voita et al. 2019, or an augmented Lagrangian that ends at an exact head budget.

The Lagrangian is that of Wang et al. 2020 ("Structured Pruning of Large Language Models", section 3.3):
λ₁ (s - t) + λ₂ (s - t)², s the expected share of open heads, t the target share, λ₁ and λ₂ raised by gradient ascent.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from torch import Tensor


@dataclass
class BudgetPressure:
    """Drives the expected number of open heads to a budget."""

    total: int
    linear: float = 0.0
    """λ₁."""
    quadratic: float = 50.0
    """λ₂; it starts high, so that the expected number of open heads follows the budget from the first update."""
    rate: float = 0.2
    """Step of the ascent on both multipliers."""
    settle: float = 0.0
    """Weight of the mean of p (1 - p), which pushes gates to decide; raised by the caller near the end."""

    def penalty(self, open_probabilities: Tensor, budget: float) -> Tensor:
        """open_probabilities `[total]`, budget in heads → the term to add to a loss in nats per token."""
        gap = open_probabilities.mean() - budget / self.total
        undecided = (open_probabilities * (1 - open_probabilities)).mean()
        return self.linear * gap + self.quadratic * gap**2 + self.settle * undecided

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
