"""The training loss: label-smoothed cross-entropy (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4).

CPUs compute the gradient in the forward pass.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hmc.training.data.batches import Batch
from hmc.training.model.transformer import Transformer

PIECE = 2**19
"""Logits computed with at a time: few enough to stay in a CPU's cache from one pass to the next."""


def cross_entropy_sum(model: Transformer, states: Tensor, batch: Batch, label_smoothing: float) -> tuple[Tensor, int]:
    """Decoder states `[B, T, d_model]` → summed cross-entropy over real target tokens (nats, scalar), and their number.

    Logits are computed for real tokens alone, not for padding.
    """
    targets = batch.target_out.flatten()[batch.real]  # [N]
    logits = model.logits(states.flatten(0, 1).index_select(0, batch.real))  # [N, V]
    return summed_cross_entropy(logits, targets, label_smoothing), batch.tokens


def summed_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """logits `[N, V]`, targets `[N]` → summed cross-entropy (nats, scalar), in fp32 or wider; differentiable once."""
    if logits.device.type != "cpu" or not torch.is_grad_enabled() or logits.dtype == torch.float64:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return functional.cross_entropy(wide, targets, label_smoothing=label_smoothing, reduction="sum")
    return cast(Tensor, _CrossEntropy.apply(logits, targets, label_smoothing))  # type: ignore[no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """Loss Σ logsumexp(z) - (1 - ε) z_target - ε mean(z), gradient softmax(z) - (1 - ε) [target] - ε / V."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        certain = 1 - label_smoothing
        spread = label_smoothing / logits.size(1)
        gradient = torch.empty_like(logits)
        total = torch.zeros(())
        rows = max(1, PIECE // logits.size(1))
        for first in range(0, len(logits), rows):
            some = slice(first, first + rows)
            z = logits[some].float()
            column = targets[some, None]
            p = z.softmax(-1)
            # logsumexp(z) = max z - log p(max): saves a second exponential of every logit.
            total += (z.amax(-1) - p.amax(-1).log()).sum() - certain * z.gather(1, column).sum() - spread * z.sum()
            p.sub_(spread).scatter_add_(1, column, p.new_full(column.shape, -certain))
            gradient[some] = p
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (by_logits,) = ctx.saved_tensors
        return by_logits * gradient, None, None
