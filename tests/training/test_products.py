"""What a CPU's training step has of its own, against PyTorch's operations: values, gradients and distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hmc.training.cross_entropy import summed_cross_entropy
from hmc.training.dropout import Dropout, draw_kept
from hmc.training.gates import gated
from hmc.training.linear import Linear, linear
from hmc.training.scaled_dot_product import KeyValues, attend

BF16 = 2e-2
"""Tolerance, relative and absolute."""


def same_gradients(mine: Tensor, theirs: Tensor, inputs: tuple[Tensor, ...], rtol: float, atol: float) -> None:
    """Values and gradients of both for one random gradient of the outputs."""
    given = torch.randn(mine.shape).to(mine.dtype)
    torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)
    found, expected = (torch.autograd.grad(y, inputs, given) for y in (mine, theirs))
    for a, b, x in zip(found, expected, inputs, strict=True):
        assert a.dtype == x.dtype
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("rows", "keys", "causal", "lengths"),
    [
        (5, 5, True, None),
        (20, 20, True, None),
        (4, 7, False, (7, 3, 1)),
        (19, 21, False, (21, 16, 2)),
        (17, 3, False, None),
        (3, 30, False, None),
    ],
)
def test_attention_equals_pytorch_fused(rows: int, keys: int, causal: bool, lengths: tuple[int, ...] | None) -> None:
    torch.manual_seed(1)
    query = torch.randn(3, rows, 2, 8, dtype=torch.float64).transpose(1, 2).requires_grad_()
    both = torch.randn(3, keys, 2, 2, 8, dtype=torch.float64).permute(2, 0, 3, 1, 4).requires_grad_()
    mask = None if lengths is None else (torch.arange(keys) < torch.tensor(lengths)[:, None])[:, None, None]
    mine = attend(query, KeyValues(both), mask, causal=causal)
    theirs = functional.scaled_dot_product_attention(query, both[0], both[1], attn_mask=mask, is_causal=causal)
    same_gradients(mine, theirs, (query, both), rtol=1e-9, atol=1e-12)


def test_attention_in_bf16_is_close_to_fp32() -> None:
    torch.manual_seed(1)
    query, both = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 4, 9, 16)
    exact = attend(query, KeyValues(both), None, causal=True)
    rough = attend(query.bfloat16().requires_grad_(), KeyValues(both.bfloat16()), None, causal=True)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=BF16, atol=BF16)


@pytest.mark.parametrize("outputs", [24, 96])
def test_linear_equals_pytorch(outputs: int) -> None:
    torch.manual_seed(1)
    own = Linear(48, outputs)
    x = torch.randn(5, 7, 48, requires_grad=True)
    inputs = (x, own.weight, own.bias)
    same_gradients(own(x), functional.linear(x, own.weight, own.bias), inputs, rtol=1e-4, atol=1e-5)


def test_linear_under_autocast_equals_pytorch() -> None:
    torch.manual_seed(1)
    weight, x = (torch.randn(96, 48) / 7).requires_grad_(), torch.randn(5, 7, 48, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = linear(x, weight), functional.linear(x, weight)
    assert mine.dtype == torch.bfloat16
    same_gradients(mine, theirs, (x, weight), BF16, BF16)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy_equals_pytorch(label_smoothing: float) -> None:
    torch.manual_seed(1)
    logits, targets = (torch.randn(300, 4000) * 5).requires_grad_(), torch.randint(4000, (300,))
    mine = summed_cross_entropy(logits, targets, label_smoothing)
    theirs = functional.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="sum")
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
    found, expected = (torch.autograd.grad(loss / 7, logits)[0] for loss in (mine, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_equals_a_product(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    heads = torch.randn(3, 4, 5, 6).to(dtype).requires_grad_()
    gates = torch.rand(4, requires_grad=True)
    rtol, atol = (1e-5, 1e-5) if dtype == torch.float32 else (BF16, 0.1)
    same_gradients(gated(heads, gates), heads * gates.to(dtype)[:, None, None], (heads, gates), rtol, atol)


@pytest.mark.parametrize("p", [0.002, 0.1, 0.3, 0.5, 0.9])
def test_dropped_share_is_p_and_places_are_independent(p: float) -> None:
    torch.manual_seed(1)
    dropped = draw_kept(torch.Size((1000, 999)), p).eq(0).flatten()
    deviation = (p * (1 - p) / dropped.numel()) ** 0.5
    assert abs(dropped.double().mean().item() - p) < 5 * deviation
    together = (dropped[1:] & dropped[:-1]).double().mean().item()
    assert abs(together - p * p) < 5 * (p * p / dropped.numel()) ** 0.5 + 2 * p * 5 * deviation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_scales_what_it_keeps_and_its_gradient_has_the_same_mask(dtype: torch.dtype) -> None:
    layer, residual = Dropout(0.25), torch.randn(40, 50, requires_grad=True)
    x = torch.ones(40, 50, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    y = layer(x)
    kept = y.ne(0)
    assert 0.2 < 1 - kept.float().mean() < 0.3
    torch.testing.assert_close(y.float(), kept / 0.75, rtol=4e-3, atol=0)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0].ne(0), kept)
    torch.manual_seed(1)
    added = layer.add(residual, x)
    assert added.dtype == torch.float32
    torch.testing.assert_close(added, residual + kept / 0.75, rtol=1e-6, atol=1e-6)
    by_residual, by_x = torch.autograd.grad(added.sum(), (residual, x))
    assert torch.equal(by_residual, torch.ones_like(residual))
    assert by_x.dtype == dtype
    assert torch.equal(by_x.ne(0), kept)


def test_dropout_does_nothing_outside_training() -> None:
    layer, x = Dropout(0.5).eval(), torch.randn(3, 4)
    assert torch.equal(layer(x), x)
    assert torch.equal(layer.add(x, x), 2 * x)


def test_equal_seeds_drop_equal_places() -> None:
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(draw_kept(torch.Size((64, 64)), 0.3))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
