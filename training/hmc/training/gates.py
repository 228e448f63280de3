"""Gates: what multiplies a head's output before W_O. One small module per regime, handed to attention.

`OpenGate` (no gate), `SampledGate` and `DeterministicGate` over one set of `HardConcrete` parameters
(Louizos et al. 2018; Voita et al. 2019, 6.1), `FixedMask` (HeadMask, Sun et al. 2021; slim ≡ masked checks) and
`ImportanceGate` (ξ of every sentence, to differentiate by).
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

STRETCH_LOW, STRETCH_HIGH = -0.1, 1.1
"""γ and ζ: the interval the concrete distribution is stretched to before it is clipped to [0, 1]."""
TEMPERATURE = 0.5
"""β: temperature of the concrete distribution; 0.5 gives the probabilities of Voita et al. 2019, figure 6."""

CERTAINTY = -TEMPERATURE * math.log(-STRETCH_LOW / STRETCH_HIGH)
"""P(g = 0) = σ(-log α - CERTAINTY) and P(g = 1) = σ(log α - CERTAINTY): equal to each other at log α = 0."""


def gated(heads: Tensor, gates: Tensor) -> Tensor:
    """heads `[…, H, T, D]`, gates `[H]` → each head times its gate, in the precision of heads."""
    if heads.device.type != "cpu" or not torch.is_grad_enabled():
        return heads * gates.to(heads.dtype)[:, None, None]
    return cast(Tensor, _Gated.apply(heads, gates))  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    """The product, with a gradient that is put in order first: PyTorch's own is ten times slower on transposed bf16."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, gates: Tensor) -> Tensor:
        ctx.save_for_backward(heads, gates)
        return heads * gates.to(heads.dtype)[:, None, None]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        heads, gates = ctx.saved_tensors
        gradient = gradient.contiguous()
        by_gates = None
        if ctx.needs_input_grad[1]:
            per_head = (gradient * heads).sum((-2, -1), dtype=gates.dtype)  # […, H]
            by_gates = per_head.flatten(0, -2).sum(0)
        return gradient * gates.to(heads.dtype)[:, None, None], by_gates


class OpenGate(nn.Module):
    """No gate: returns the head outputs unchanged."""

    def forward(self, heads: Tensor) -> Tensor:
        """heads `[B, H, T, D]` → the same tensor."""
        return heads

    def gate_params(self) -> list[str]:
        """Names of the parameters this gate learns."""
        return []


class FixedMask(OpenGate):
    """Multiplies each head by a fixed 0/1 value (ξ_h in Sun et al. 2021, eq. 1)."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        """mask `[H]`, 1 = open, 0 = closed."""
        super().__init__()
        self.register_buffer("mask", mask.float(), persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        return gated(heads, self.mask)


class ImportanceGate(OpenGate):
    """Multiplies each head by ξ_h of its own sentence (Sun et al. 2021, eq. 1; Michel et al. 2019).

    With ξ = 1 the output does not change, and the gradient of the batch's summed loss with respect to ξ is ∂L(x)/∂ξ_h
    of each sentence x on its own, since sentences do not see each other.
    """

    def __init__(self, xi: Tensor) -> None:
        """xi `[B, H]`; a plain tensor that the caller differentiates by, not a parameter of the model."""
        super().__init__()
        self.xi = xi

    def forward(self, heads: Tensor) -> Tensor:
        # The product is taken in ξ's precision, so that its gradient is summed there under autocast too.
        return (heads * self.xi[:, :, None, None]).to(heads.dtype)


class HardConcrete(nn.Module):
    """Parameters log α `[H]` of one attention's gates; no behaviour of its own in the forward pass."""

    def __init__(self, heads: int, initial: float = 2.0) -> None:
        """initial: starting log α; 2.0 closes a gate with probability 0.04 and opens it fully with 0.69."""
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((heads,), initial))

    def sample(self) -> Tensor:
        """`[H]` gate values drawn once (Louizos et al. 2018, eq. 10-11), differentiable in log α."""
        uniform = torch.rand_like(self.log_alpha).clamp(1e-6, 1 - 1e-6)
        concrete = torch.sigmoid((uniform.log() - (1 - uniform).log() + self.log_alpha) / TEMPERATURE)
        return (concrete * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0.0, 1.0)

    def open_probability(self) -> Tensor:
        """`[H]` P(g ≠ 0) in closed form; its sum is the penalty L_C (Voita et al. 2019, section 6.1)."""
        return torch.sigmoid(self.log_alpha + CERTAINTY)

    def fully_open_probability(self) -> Tensor:
        """`[H]` P(g = 1)."""
        return torch.sigmoid(self.log_alpha - CERTAINTY)


class SampledGate(OpenGate):
    """Training regime: gates drawn anew in every forward pass, one draw for the whole batch."""

    def __init__(self, parameters: HardConcrete) -> None:
        super().__init__()
        self.hard_concrete = parameters

    def forward(self, heads: Tensor) -> Tensor:
        return gated(heads, self.hard_concrete.sample())

    def gate_params(self) -> list[str]:
        return ["hard_concrete.log_alpha"]


class DeterministicGate(OpenGate):
    """Evaluation regime: a gate is 1 where P(g = 1) > P(g = 0), else 0 (Voita et al. 2019, footnote 7)."""

    def __init__(self, parameters: HardConcrete) -> None:
        super().__init__()
        self.hard_concrete = parameters

    def forward(self, heads: Tensor) -> Tensor:
        closed = 1 - self.hard_concrete.open_probability()
        value = (self.hard_concrete.fully_open_probability() > closed).to(heads.dtype)
        return heads * value[:, None, None]
