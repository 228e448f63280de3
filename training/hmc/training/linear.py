"""`nn.Linear` for training on a CPU: one call of oneDNN for each product, without autocast's detours.

PyTorch gives fp32 matrices to MKL, which keeps to AVX2 on processors that are not Intel's; oneDNN uses AVX-512 on all
of them and is 1.5 to 2.2 times as fast there. Both sum in fp32. For bf16 PyTorch uses oneDNN too, but copies the bias
into every result first.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_WIDE = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
ONE_DNN = _WIDE and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether processor and PyTorch have what the faster products need."""


def precision_of(x: Tensor) -> torch.dtype:
    """What products of x are taken in: autocast's precision where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x `[…, I]`, weight `[O, I]`, bias `[O]` → x Wᵀ + b `[…, O]` at autocast's precision; differentiable once."""
    precision = precision_of(x)
    if (
        not ONE_DNN
        or x.device.type != "cpu"
        or precision not in (torch.float32, torch.bfloat16)
        or not {x.dtype, weight.dtype} <= {torch.float32, precision}
        or not torch.is_grad_enabled()
        or not x.numel() * weight.numel()
    ):
        return functional.linear(x, weight, bias)
    return cast(Tensor, _Linear.apply(x, weight, bias, precision))  # type: ignore[no-untyped-call]


class Linear(nn.Linear):
    """`nn.Linear` with the product above."""

    def forward(self, input: Tensor) -> Tensor:
        """input `[…, I]` → `[…, O]`."""
        return linear(input, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, precision: torch.dtype) -> Tensor:
        ctx.types = x.dtype, weight.dtype
        x, weight = x.to(precision), weight.to(precision)
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
    # The longer side takes the place of the weights: oneDNN is faster so.
    return _product(b.t(), a.t()).t() if a.size(1) > b.size(1) else _product(a.t(), b.t())
