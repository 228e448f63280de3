"""`nn.Linear` for training on a CPU: every product is one call of oneDNN.

PyTorch computes fp32 products with MKL, which uses AVX2 at most on processors that are not Intel's. oneDNN uses AVX-512
on all of them and is 1.5 to 2.2 times as fast there. Both sum in fp32. For bf16 PyTorch uses oneDNN itself, but first
copies the bias into every result.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

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
    x, weight, bias = ramp[:6].sin(), ramp[6:].cos(), ramp[0, :18]
    for dtype, tolerance in TOLERANCE.items():
        for flipped in (weight, weight.t().contiguous().t()):  # training multiplies by transposed matrices too
            inputs = [tensor.to(dtype) for tensor in (x, flipped, bias)]
            with torch.autocast("cpu", enabled=False):
                try:
                    found = _product(*inputs)
                except (AttributeError, RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError
                    return f"cannot be called ({str(error).splitlines()[0]})"
                expected = functional.linear(*inputs)
            if found.shape != expected.shape or not torch.allclose(found, expected, rtol=0, atol=tolerance):
                return f"gives wrong numbers in {dtype}"
    return None


def precision_of(x: Tensor) -> torch.dtype:
    """Returns the dtype that products of x are computed in: autocast's where it is on, else that of x."""
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
    # The longer side is passed as the weights: oneDNN is faster that way.
    return _product(b.t(), a.t()).t() if a.size(1) > b.size(1) else _product(a.t(), b.t())
