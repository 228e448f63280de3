"""Cross entropy and divergence from a teacher in one pass over the logits (Kim & Rush 2016, equation 7).

    Σ (1 - w) · CE(z, y) + w · T² · KL(softmax(t / T) ‖ softmax(z / T))        z: student's logits, t: teacher's

The teacher's logits `[N, V]` are never whole in memory: they are computed for a few rows at a time, together with the
gradient by the student's logits, which replaces them for the backward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

PIECE = {"cpu": 2**19, "cuda": 2**25}
"""Logits computed with at a time: what stays in a CPU's cache, and what fills a GPU (128 MiB in fp32)."""


class TeacherLogits(NamedTuple):
    """What the teacher's logits are made of: t = states · Wᵀ + b. None of it gets a gradient."""

    states: Tensor
    """`[N, d]` decoder states of the teacher."""
    weight: Tensor
    """W `[V, d]`."""
    bias: Tensor
    """b `[V]`."""

    def rows(self, some: slice) -> Tensor:
        """`[n, V]` logits of some rows in fp32 or wider; products in autocast's dtype."""
        found = functional.linear(self.states[some], self.weight, self.bias)
        return found.to(torch.promote_types(found.dtype, torch.float32))


class Mixture(NamedTuple):
    """How cross entropy and divergence are mixed."""

    weight: float
    """w, from 0 to 1: share of the divergence."""
    temperature: float
    """T > 0."""
    label_smoothing: float
    """ε of the cross entropy; the teacher's distribution is not smoothed."""


def mixed_loss(logits: Tensor, targets: Tensor, teacher: TeacherLogits, mixture: Mixture) -> Tensor:
    """logits `[N, V]`, targets `[N]` → summed loss (nats, scalar), in fp32 or wider; differentiable once."""
    if torch.compiler.is_compiling():  # it makes kernels of its own, for any number of rows
        return _whole(logits, targets, teacher, mixture)
    return cast(Tensor, _MixedLoss.apply(logits, targets, teacher, mixture))  # type: ignore[no-untyped-call]


def _whole(logits: Tensor, targets: Tensor, teacher: TeacherLogits, mixture: Mixture) -> Tensor:
    """The loss in PyTorch's own operations."""
    weight, temperature, smoothing = mixture
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    with torch.no_grad():
        taught = teacher.rows(slice(None)).to(wide.dtype).div(temperature).log_softmax(-1)
    entropy = functional.cross_entropy(wide, targets, label_smoothing=smoothing, reduction="sum")
    learned = wide.div(temperature).log_softmax(-1)
    divergence = functional.kl_div(learned, taught, reduction="sum", log_target=True)
    return (1 - weight) * entropy + weight * temperature**2 * divergence


class _MixedLoss(torch.autograd.Function):
    """The gradient by z is (1 - w) (softmax(z) - (1 - ε) [y] - ε / V) + w T (softmax(z / T) - softmax(t / T))."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, teacher: TeacherLogits, mixture: Mixture) -> Tensor:
        wide = torch.promote_types(logits.dtype, torch.float32)
        gradient, total = torch.empty_like(logits), torch.zeros((), device=logits.device, dtype=wide)
        rows = max(1, PIECE.get(logits.device.type, PIECE["cuda"]) // logits.size(1))
        for first in range(0, len(logits), rows):
            some = slice(first, first + rows)
            loss, by_logits = _piece(logits[some].to(wide), targets[some, None], teacher.rows(some).to(wide), mixture)
            total += loss
            gradient[some] = by_logits
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (by_logits,) = ctx.saved_tensors
        return by_logits * gradient, None, None, None


def _piece(z: Tensor, column: Tensor, t: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """z, t `[n, V]`, targets `[n, 1]` → summed loss and its gradient by z `[n, V]`."""
    weight, temperature, smoothing = mixture
    taught = t.div_(temperature).log_softmax(-1)
    learned = (z / temperature).log_softmax(-1)
    q = taught.exp()
    loss = weight * temperature**2 * ((taught - learned) * q).sum()
    by_logits = learned.exp().sub_(q).mul_(weight * temperature)
    if weight < 1:
        log_p = learned if temperature == 1 else z.log_softmax(-1)
        certain, spread = 1 - smoothing, smoothing / z.size(1)
        loss = loss - (1 - weight) * (certain * log_p.gather(1, column).sum() + spread * log_p.sum())
        by_logits.add_(log_p.exp_().sub_(spread), alpha=1 - weight)
        by_logits.scatter_add_(1, column, by_logits.new_full(column.shape, -certain * (1 - weight)))
    return loss, by_logits
