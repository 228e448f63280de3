"""Dropout, alone or before a residual connection, several times faster than the stock one on a CPU."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers as wide as a floating-point element of so many bytes."""


class Dropout(nn.Module):
    """Zeroes elements with probability p (on a CPU to a resolution of 1/65536) and scales the rest by 1/(1 - p)."""

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
        """residual + dropout(x); both of one shape, the sum in the wider of their precisions."""
        if not self.training or self.p == 0 or x.device.type != "cpu":
            return residual + self(x)
        return cast(Tensor, _Drop.apply(x, residual, draw_kept(x.shape, self.p), self.p))  # type: ignore[no-untyped-call]


def draw_kept(shape: torch.Size, p: float) -> Tensor:
    """int16 of `shape`: all bits set with probability 1 - p, else none. Depends on PyTorch's generator alone.

    Four elements share a 64-bit word of a generator that is faster than PyTorch's and seeded by it.
    """
    seed = int(torch.randint(2**63 - 1, ()))
    words = np.random.SFC64(seed).random_raw(-(-shape.numel() // 4))
    threshold = round(p * 65536) - 32768
    values = torch.from_numpy(words).view(torch.int16)[: shape.numel()].view(shape)
    return values.clamp_(threshold - 1, threshold).neg_().add_(threshold - 1)


class _Drop(torch.autograd.Function):
    """Elements are dropped by an AND of their bits: no conversion of the mask, and no product with it."""

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
    """x where `kept` has all bits set, 0 elsewhere; a new tensor."""
    bits = _BITS[x.element_size()]
    return (x.view(bits) & kept.to(bits)).view(x.dtype)
