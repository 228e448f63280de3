"""Operations of a training step that are faster on a CPU than PyTorch's: dropout, attention and linear maps.

`Linear` computes every product with one call of oneDNN. PyTorch computes fp32 products with MKL, which uses AVX2 at
most on processors that are not Intel's; oneDNN uses AVX-512 on all of them and is 1.5 to 2.2 times as fast there. Both
sum in fp32. For bf16 PyTorch uses oneDNN itself, but first copies the bias into every result.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
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
    ⌊256 p⌋ / 256. The rest of p is small. For it, a Poisson-distributed number of further positions is drawn and
    dropped. NumPy's SFC64 makes the bits, faster than PyTorch's generator, which seeds it.
    """
    random = np.random.Generator(np.random.SFC64(int(torch.randint(2**63 - 1, ()))))
    count = shape.numel()
    coarse = int(p * 256)
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
        ctx.scale = 1 / (1 - p)
        ctx.types = (x.dtype, None if residual is None else residual.dtype)
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
        """Returns these keys and values with the keys and values of later positions appended."""
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
        q = _stack(query, rows)
        kv = _stack(source, width).view(2, -1, width, size)
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


TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference, absolute, between oneDNN's and PyTorch's products of the probe, by dtype."""


@cache
def uses_one_dnn() -> bool:
    """True when the processor has AVX-512 and PyTorch's private oneDNN operation gives the right numbers.

    The operation is not part of PyTorch's public interface and may change or disappear. So it is tried once against
    `functional.linear`. When it fails, a warning is logged and PyTorch's own products are used.
    """
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return False
    problem = _probe()
    if problem:
        logging.getLogger(__name__).warning(
            "PyTorch %s: torch.ops.mkldnn._linear_pointwise %s; training on this CPU uses slower products",
            torch.__version__, problem,
        )  # fmt: skip
    return problem is None


@torch.no_grad()
def _probe() -> str | None:
    """Compares the oneDNN operation with `functional.linear`; returns what is wrong, or None."""
    ramp = torch.linspace(-1.0, 1.0, 24 * 40).view(24, 40)
    x = ramp[:6].sin()
    weight = ramp[6:].cos()
    bias = ramp[0, :18]
    for dtype, tolerance in TOLERANCE.items():
        for flipped in (weight, weight.t().contiguous().t()):  # training multiplies by transposed matrices too
            inputs = [tensor.to(dtype) for tensor in (x, flipped, bias)]
            with torch.autocast("cpu", enabled=False):
                try:
                    product = _product(*inputs)
                except (AttributeError, RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
                    return f"cannot be called ({str(error).splitlines()[0]})"
                expected = functional.linear(*inputs)
            if product.shape != expected.shape or not torch.allclose(product, expected, rtol=0, atol=tolerance):
                return f"gives wrong numbers in {dtype}"
    return None


def precision_of(x: Tensor) -> torch.dtype:
    """Returns the dtype that products of x are computed in: autocast's dtype where it is on, else x's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[…, I]`, weight `[O, I]`, bias `[O]` → x Wᵀ + b `[…, O]` in autocast's dtype; differentiable once."""
    precision = precision_of(x)
    if (
        x.device.type != "cpu"
        or precision not in (torch.float32, torch.bfloat16)
        or not {x.dtype, weight.dtype} <= {torch.float32, precision}
        or not torch.is_grad_enabled()
        or not x.numel() * weight.numel()
        or not uses_one_dnn()
    ):
        return functional.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x, weight, bias, precision))  # type: ignore[no-untyped-call]


class Linear(nn.Linear):
    """`nn.Linear` that computes with `linear` above."""

    def forward(self, input: Tensor) -> Tensor:
        """input `[…, I]` → `[…, O]`."""
        return linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, precision: torch.dtype) -> Tensor:
        ctx.types = x.dtype, weight.dtype
        x = x.to(precision)
        weight = weight.to(precision)
        ctx.save_for_backward(x, weight)
        return _product(x, weight, None if bias is None else bias.to(precision))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        x_type, weight_type = ctx.types
        wants_x, wants_weight, wants_bias, _ = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)  # [N, O]
        by_x = _product(gradient, weight.t()).to(x_type) if wants_x else None
        by_weight = _outer(rows, x.flatten(0, -2)).to(weight_type) if wants_weight else None
        return by_x, by_weight, rows.sum(0).to(weight_type) if wants_bias else None, None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[…, I]`, weight `[O, I]` of any strides, bias `[O]` → `[…, O]`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """a `[N, O]`, b `[N, I]` → Aᵀ B `[O, I]`."""
    if a.dtype != torch.float32:
        return a.t() @ b
    # The longer side is passed as the weights: oneDNN is faster that way.
    return _product(b.t(), a.t()).t() if a.size(1) > b.size(1) else _product(a.t(), b.t())
