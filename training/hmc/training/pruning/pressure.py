"""Penalties that close gates: λ · L_C (Voita et al. 2019), or an augmented Lagrangian that ends at an exact budget.

The Lagrangian is that of Wang et al. 2020 ("Structured Pruning of Large Language Models", section 3.3):
λ₁ (s - t) + λ₂ (s - t)², where s is the expected share of open heads, t the target share, and gradient ascent raises λ₁
and λ₂. It fixes how many heads are open in expectation, but not that each gate decides. `HardConcrete.indecision` makes
gates decide, and `sure_log_alpha` is where each gate ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SURE = 5.0
SUREST = 8.0
"""Range of |log α| of settled gates. There P(g = 0) or P(g = 1) is 0.98 or more, and a later stage can still change
the gate."""


class BudgetPressure:
    """Drives the expected number of open gates among `total` gates to a budget.

    The multipliers stay on the device of the gates, so that an update does not make a GPU wait.
    """

    def __init__(
        self,
        total: float,
        linear: float = 0.0,
        quadratic: float = 50.0,
        rate: float = 0.2,
        device: torch.device | None = None,
    ) -> None:
        """linear: λ₁. quadratic: λ₂; it starts high, so that open gates follow the budget from the first update.
        rate: step of the ascent of both."""
        device = device or torch.device("cpu")
        dtype = torch.float32 if device.type == "mps" else torch.float64  # Apple's MPS devices lack float64
        self.total = total
        self.rate = rate
        self.linear = torch.tensor(linear, dtype=dtype, device=device)
        self.quadratic = torch.tensor(quadratic, dtype=dtype, device=device)

    def penalty(self, open_probabilities: Tensor, budget: float) -> Tensor:
        """open_probabilities `[total]`, budget in gates → the term to add to a loss in nats per token (scalar)."""
        return self._of(open_probabilities.mean() - budget / self.total)

    def penalty_of(self, expected: Tensor, budget: float) -> Tensor:
        """The same for an expected latency (scalar), where `total` is the latency with all gates open."""
        return self._of(expected / self.total - budget / self.total)

    def _of(self, gap: Tensor) -> Tensor:
        return self.linear.to(gap.dtype) * gap + self.quadratic.to(gap.dtype) * gap**2

    def ascend(self, expected_open: Tensor, budget: float) -> None:
        """Raises the multipliers after an update. expected_open: the sum of P(g ≠ 0) over the gates (scalar)."""
        gap = (expected_open.to(self.linear.dtype) - budget) / self.total
        self.linear = self.linear + self.rate * gap
        self.quadratic = self.quadratic + self.rate * gap**2

    def to_json(self) -> dict[str, float]:
        """Returns total, multipliers and rate, to resume from."""
        numbers = {"linear": float(self.linear), "quadratic": float(self.quadratic), "rate": self.rate}
        return {"total": self.total, **numbers}

    def restore(self, saved: Mapping[str, float]) -> None:
        """Goes on from what `to_json` returned."""
        self.total = saved.get("total", self.total)
        self.rate = saved["rate"]
        self.linear = torch.full_like(self.linear, saved["linear"])
        self.quadratic = torch.full_like(self.quadratic, saved["quadratic"])


def l0_penalty(open_probabilities: Tensor, strength: float) -> Tensor:
    """P(g ≠ 0) of all gates → λ · Σ P(g ≠ 0) = λ · Σ (1 - P(g = 0)) (Voita et al. 2019, section 6.1), a scalar."""
    return strength * open_probabilities.sum()


def top(log_alpha: Tensor, number: int) -> Tensor:
    """log_alpha `[N]` → `[N]` booleans: True for the `number` gates of highest log α."""
    keep = log_alpha.new_zeros(log_alpha.shape).bool()
    return keep.index_fill_(0, log_alpha.topk(number).indices, True)


def sure_log_alpha(log_alpha: Tensor, keep: Tensor) -> Tensor:
    """log_alpha `[N]`, keep `[N]` booleans → the log α that gates end at, `[N]`.

    Kept gates go to [SURE, SUREST], the rest to [-SUREST, -SURE]; each group keeps its order.
    """
    values = log_alpha.detach()
    if not len(values):
        return values.clone()
    ends = []
    for side, chosen in ((1.0, keep), (-1.0, ~keep)):
        strength = side * values
        low = strength.masked_fill(~chosen, torch.inf).min()
        high = strength.masked_fill(~chosen, -torch.inf).max()
        spread = ((SUREST - SURE) / (high - low).clamp(min=1e-6)).clamp(max=1.0)
        ends.append(side * (SURE + (strength - low) * spread))
    return torch.where(keep, ends[0], ends[1])
