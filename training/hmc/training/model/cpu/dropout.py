"""Dropout, alone or before a residual connection; on a CPU several times as fast as PyTorch's."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Size of a floating-point element in bytes → integer dtype of that size."""


class Dropout(nn.Module):
    """Zeroes elements with probability p and scales the rest by 1/(1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape → the same shape."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.p)
        return cast(Tensor, _Drop.apply(x, None, draw_kept(x.shape, self.p), self.p))  # type: ignore[no-untyped-call]

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns residual + dropout(x), two tensors of one shape, in the wider of their dtypes."""
        if not self.training or self.p == 0 or x.device.type != "cpu":
            return residual + self(x)
        return cast(Tensor, _Drop.apply(x, residual, draw_kept(x.shape, self.p), self.p))  # type: ignore[no-untyped-call]


def draw_kept(shape: torch.Size, p: float) -> Tensor:
    """Draws int8 of `shape`: each element independently is -1 (all bits set) with probability 1 - p, else 0.

    Random bits take most of dropout's time, so every element gets one byte, which drops it with probability
    ⌊256 p⌋ / 256. The rest of p is small: that many more positions, a Poisson-distributed number, are drawn and
    dropped. NumPy's SFC64 makes the bits, faster than PyTorch's generator, which seeds it.
    """
    random = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    count, coarse = shape.numel(), int(p * 256)
    values = random.bit_generator.random_raw(-(-count // 8)).view(np.int8)[:count]
    kept = torch.from_numpy(values)
    if coarse:
        kept.clamp_(coarse - 129, coarse - 128).neg_().add_(coarse - 129)
    else:
        kept.fill_(-1)
    rest = (p - coarse / 256) / (1 - coarse / 256)
    kept[torch.from_numpy(random.integers(max(count, 1), size=random.poisson(-count * math.log1p(-rest))))] = 0
    return kept.view(shape)


class _Drop(torch.autograd.Function):
    """Drops elements with a bitwise AND, which needs neither a conversion of the mask nor a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, kept: Tensor, p: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale, ctx.types = 1 / (1 - p), (x.dtype, None if residual is None else residual.dtype)
        dropped = _masked(x, kept)
        return dropped.mul_(ctx.scale) if residual is None else torch.add(residual, dropped, alpha=ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (kept,) = ctx.saved_tensors
        own, residual = ctx.types
        by_x = _masked(gradient.to(own), kept).mul_(ctx.scale)
        return by_x, None if residual is None else gradient.to(residual), None, None


def _masked(x: Tensor, kept: Tensor) -> Tensor:
    """Returns a new tensor: x where `kept` has all bits set, 0 elsewhere."""
    bits = _BITS[x.element_size()]
    return (x.view(bits) & kept.to(bits)).view(x.dtype)
