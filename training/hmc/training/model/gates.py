"""Gates: modules that attention applies to its head outputs before W_O. One class per regime.

`OpenGate` does nothing, and `SelectedHeads` lets attention compute some heads alone. `SampledGate` draws from a
`HardConcrete` (Louizos et al. 2018; Voita et al. 2019, section 6.1).
`FixedMask` masks heads (Sun et al. 2021). `ImportanceGate` scales the heads of each sentence by a tensor, to take
gradients with respect to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

STRETCH_LOW = -0.1
STRETCH_HIGH = 1.1
"""γ and ζ: the interval that the concrete distribution is stretched to before it is clipped to [0, 1]."""
TEMPERATURE = 0.5
"""β: temperature of the concrete distribution; 0.5 gives the probabilities of Voita et al. 2019, figure 6."""

CERTAINTY = -TEMPERATURE * math.log(-STRETCH_LOW / STRETCH_HIGH)
"""P(g = 0) = σ(-log α - CERTAINTY) and P(g = 1) = σ(log α - CERTAINTY): equal to each other at log α = 0."""


def gated(heads: Tensor, gates: Tensor) -> Tensor:
    """heads `[…, H, T, D]`, gates `[H]` → each head times its gate, in the dtype of heads."""
    if heads.device.type != "cpu" or not torch.is_grad_enabled():
        return heads * gates.to(heads.dtype)[:, None, None]
    return cast(Tensor, _Gated.apply(heads, gates))  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    """The product for CPUs. Its backward pass makes the gradient contiguous: transposed bf16 is ten times slower."""

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


class Gate(nn.Module):
    """Base class: maps head outputs `[B, H, T, D]` to gated outputs of the same shape."""

    def forward(self, heads: Tensor) -> Tensor:
        """heads `[B, H, T, D]` → `[B, H, T, D]`."""
        raise NotImplementedError


class OpenGate(Gate):
    """No gate: every head is open."""

    def forward(self, heads: Tensor) -> Tensor:
        """Returns `heads` itself."""
        return heads


class ClosedGate(Gate):
    """Nothing passes, so the gated part need not be computed."""

    def forward(self, heads: Tensor) -> Tensor:
        """Returns zeros."""
        return torch.zeros_like(heads)


class FixedMask(Gate):
    """Multiplies each head by a fixed value, 0 or 1 (ξ_h in Sun et al. 2021, eq. 1) unless open heads are scaled."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        """mask `[H]`: 1 = open, 0 = closed; another number scales an open head."""
        super().__init__()
        self.register_buffer("mask", mask.float(), persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        return gated(heads, self.mask)


class SelectedHeads(Gate):
    """Some heads alone: attention does not compute the others; a mask of 0 would compute them for nothing.

    Outputs and gradients equal those of `FixedMask` up to rounding: weights of heads that are left out have gradient 0.
    """

    rows: Tensor
    pairs: Tensor

    def __init__(self, heads: Sequence[int], of: int, head_dim: int) -> None:
        """heads: positions of the heads, rising, of all `of`. head_dim: rows of W_Q, W_K, W_V that a head has."""
        super().__init__()
        self.heads = len(heads)
        rows = (torch.tensor(heads, dtype=torch.int64)[:, None] * head_dim + torch.arange(head_dim)).flatten()
        self.register_buffer("rows", rows, persistent=False)  # of W_Q, and columns of W_O
        self.register_buffer("pairs", torch.cat([rows, rows + of * head_dim]), persistent=False)  # of keys and values

    def forward(self, heads: Tensor) -> Tensor:
        """Returns `heads`, because only selected heads were computed."""
        return heads


class ImportanceGate(Gate):
    """Multiplies each head by ξ_h of its sentence (Sun et al. 2021, eq. 1; Michel et al. 2019), or of each token.

    ξ = 1 leaves the output as it is. The gradient of the batch's summed loss with respect to ξ is then ∂L(x)/∂ξ_h of
    each sentence x separately, because no sentence influences another.
    """

    def __init__(self, xi: Tensor) -> None:
        """xi `[B, H]`, or `[B, H, T]` with a value for each token: a plain tensor that requires a gradient; not a
        parameter of the model."""
        super().__init__()
        self.xi = xi

    def forward(self, heads: Tensor) -> Tensor:
        xi = self.xi if self.xi.dim() == 3 else self.xi[:, :, None]
        # The product has ξ's dtype, so that ξ's gradient is summed in it under autocast too.
        return (heads * xi[..., None]).to(heads.dtype)


class HardConcrete(nn.Module):
    """Parameters log α `[H]` of the gates of one module, and their distribution. Closed gates are always 0."""

    closed: Tensor

    def __init__(self, heads: int, initial: float = 2.0) -> None:
        """initial: starting log α. At 2.0, P(g = 0) is 0.04 and P(g = 1) is 0.69."""
        super().__init__()
        self._drawn: Tensor | None = None
        self.log_alpha = nn.Parameter(torch.full((heads,), initial))
        self.register_buffer("closed", torch.zeros(heads, dtype=torch.bool), persistent=False)

    def close(self, closed: Tensor) -> None:
        """closed `[H]` booleans: these gates are 0 from now on, whatever their log α; all others are random."""
        self.closed.copy_(closed)

    def draw(self, uniform: Tensor) -> None:
        """uniform `[H]` in [0, 1): the random numbers of every sample from now on, until the next draw."""
        self._drawn = uniform

    def sample(self) -> Tensor:
        """`[H]` gate values in [0, 1] (Louizos et al. 2018, eq. 10-11), differentiable in log α.

        They are made of the numbers of the last `draw`, or of new numbers if there was no draw.
        """
        drawn = torch.rand_like(self.log_alpha) if self._drawn is None else self._drawn
        uniform = drawn.clamp(1e-6, 1 - 1e-6)
        concrete = torch.sigmoid((uniform.log() - (1 - uniform).log() + self.log_alpha) / TEMPERATURE)
        values = (concrete * (STRETCH_HIGH - STRETCH_LOW) + STRETCH_LOW).clamp(0.0, 1.0)
        return values.masked_fill(self.closed, 0.0)

    def open_probability(self) -> Tensor:
        """`[H]` P(g ≠ 0) in closed form; its sum is the penalty L_C (Voita et al. 2019, section 6.1)."""
        return torch.sigmoid(self.log_alpha + CERTAINTY).masked_fill(self.closed, 0.0)

    @staticmethod
    def indecision(log_alpha: Tensor, keep: Tensor) -> Tensor:
        """log_alpha `[N]`, keep `[N]` booleans → `[N]`: -log P(g = 1) where `keep`, -log P(g = 0) elsewhere.

        Voita et al. 2019 (section 6.1) find that gates settle by themselves. Gates near the edge of a budget do not:
        L_C is the same for one gate that is surely open and two that are open half of the time.
        """
        side = keep.to(log_alpha.dtype) * 2 - 1
        return functional.softplus(CERTAINTY - side * log_alpha)


class SampledGate(Gate):
    """Training regime: gates are random, and the same for all sentences of a batch (`HardConcrete.sample`)."""

    def __init__(self, parameters: HardConcrete) -> None:
        super().__init__()
        self.hard_concrete = parameters

    def forward(self, heads: Tensor) -> Tensor:
        return gated(heads, self.hard_concrete.sample())


class NestedGate(Gate):
    """Training regime of heads that also share a gate: each is multiplied by its own draw and by the shared one."""

    def __init__(self, parameters: HardConcrete, shared: HardConcrete) -> None:
        """parameters: of H gates. shared: of one."""
        super().__init__()
        self.hard_concrete = parameters
        self.shared = shared

    def forward(self, heads: Tensor) -> Tensor:
        return gated(heads, self.hard_concrete.sample() * self.shared.sample())
