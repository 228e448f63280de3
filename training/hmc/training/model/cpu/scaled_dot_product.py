"""Scaled dot-product attention softmax(Q Kᵀ / √D) V (Vaswani et al. 2017, eq. 1), fast for sentences on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

NARROWEST = 16
"""Smallest width of a row of scores. PyTorch's softmax is ten times slower on rows shorter than a register."""


@dataclass(frozen=True)
class KeyValues:
    """Projected keys and values of one attention."""

    both: Tensor
    """`[2, B, H, S, D]`: keys, then values."""

    @property
    def keys(self) -> Tensor:
        """`[B, H, S, D]`."""
        return self.both[0]

    @property
    def values(self) -> Tensor:
        """`[B, H, S, D]`."""
        return self.both[1]

    def __iter__(self) -> Iterator[Tensor]:
        """Yields the keys, then the values."""
        yield from self.both.unbind(0)

    def select(self, rows: Tensor) -> KeyValues:
        """Returns the keys and values of some rows of the batch. rows: an index tensor."""
        return KeyValues(self.both.index_select(1, rows))

    def then(self, later: KeyValues) -> KeyValues:
        """Returns these keys and values with those of later positions appended."""
        return KeyValues(torch.cat([self.both, later.both], 3))


def attend(query: Tensor, source: KeyValues, mask: Tensor | None, *, causal: bool) -> Tensor:
    """query `[B, H, T, D]`, mask broadcastable to `[B, H, T, S]` (True = attend) → `[B, H, T, D]`.

    causal: position t attends to positions up to t; then `mask` must be None. Training on a CPU uses a function of its
    own, because at sentence lengths the backward pass of PyTorch's fused kernel takes more than half of an update, and
    separate operations take a quarter. Its gradient cannot be differentiated again.
    """
    if query.device.type != "cpu" or not torch.is_grad_enabled():
        if causal:  # a branch of its own: torch.compile knows `causal` as a condition on a size, not as True or False
            return functional.scaled_dot_product_attention(query, source.keys, source.values, is_causal=True)
        return functional.scaled_dot_product_attention(query, source.keys, source.values, attn_mask=mask)
    keys = source.both.size(3)
    width = max(keys, NARROWEST)
    bias = _bias(mask, causal, query.size(2), keys, width)
    return cast(Tensor, _Attend.apply(query, source.both, bias, width))  # type: ignore[no-untyped-call]


def leave_out_cudnn() -> None:
    """Keeps PyTorch from computing attention with cuDNN on a GPU; affects the whole process.

    cuDNN builds a plan for every new shape, and batches of sentences have hundreds of shapes: on an H200 an update took
    300 ms in the first pass over a corpus, and 30 ms in the second.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def _bias(mask: Tensor | None, causal: bool, rows: int, keys: int, width: int) -> Tensor | None:
    """Returns the term to add to scores: 0 where a row attends, -inf elsewhere. Its last dimension is `width`; columns
    from `keys` on are -inf. None: every row attends to every key."""
    if causal:
        seen = torch.ones(rows, width, dtype=torch.bool).tril()
    elif mask is not None:
        seen = functional.pad(mask, (0, width - keys))
    elif width > keys:
        seen = torch.arange(width) < keys
    else:
        return None
    return torch.where(seen, 0.0, float("-inf"))


class _Attend(torch.autograd.Function):
    """Computes products in the dtype of the inputs, softmax and its gradient in fp32 or wider."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, source: Tensor, bias: Tensor | None, width: int) -> Tensor:
        batch, heads, rows, size = query.shape
        q, kv = _stack(query, rows), _stack(source, width).view(2, -1, width, size)
        scores = _wide(_scaled(q, kv[0].mT, size**-0.5))  # [B·H, T, W]
        if bias is not None:
            scores.view(batch, heads, rows, width).add_(bias)
        weights = scores.softmax(-1)
        ctx.save_for_backward(q, kv, weights)
        ctx.keys = source.size(3)
        return torch.bmm(weights.to(kv.dtype), kv[1]).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        q, kv, weights = ctx.saved_tensors
        batch, heads, rows, size = gradient.shape
        g = _stack(gradient, rows)
        by_weights = _wide(torch.bmm(g, kv[1].mT))
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype).to(g.dtype)
        by_query = _scaled(by_scores, kv[0], size**-0.5)
        by_source = torch.empty_like(kv)
        _scaled(by_scores.mT, q, size**-0.5, out=by_source[0])
        torch.bmm(weights.to(g.dtype).mT, g, out=by_source[1])
        by_source = by_source.view(2, batch, heads, -1, size)[:, :, :, : ctx.keys]
        return by_query.view(gradient.shape), by_source, None, None


def _stack(x: Tensor, width: int) -> Tensor:
    """`[…, S, D]` of any strides → contiguous `[N, width, D]`, zeros from position S on."""
    if x.size(-2) == width:
        return x.reshape(-1, width, x.size(-1))
    padded = x.new_zeros(*x.shape[:-2], width, x.size(-1))
    padded[..., : x.size(-2), :] = x
    return padded.flatten(0, -3)


def _scaled(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Returns scale · A B for batches of matrices."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale, out=out)


def _wide(x: Tensor) -> Tensor:
    """Converts x to fp32, unless its dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
