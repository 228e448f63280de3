"""CPU operations of a training step: values and gradients against float64 references, and the shares of dropout."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hmc.training.model import cpu as products
from hmc.training.model.cpu import Dropout, KeyValues, Linear, attend, draw_kept, linear
from hmc.training.model.gates import gated
from hmc.training.model.loss import summed_cross_entropy

BF16 = 2e-2
"""Tolerance of bf16, relative and absolute."""


def assert_equal_to_float64(
    own: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: tuple[Tensor, ...], rtol: float, atol: float
) -> None:
    """Compares values, and gradients for one random gradient of the output, with the reference in float64."""
    wide = tuple(x.detach().double().requires_grad_() for x in inputs)
    found, expected = own(*inputs), reference(*wide)
    given = torch.randn(expected.shape).to(found.dtype)
    torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol)
    gradients = torch.autograd.grad(found, inputs, given), torch.autograd.grad(expected, wide, given.double())
    for mine, exact, x in zip(*gradients, inputs, strict=True):
        assert mine.dtype == x.dtype
        torch.testing.assert_close(mine.double(), exact, rtol=rtol, atol=atol)


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
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_attention(rows: int, keys: int, causal: bool, lengths: tuple[int, ...] | None, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    query = torch.randn(3, rows, 2, 8, dtype=dtype).transpose(1, 2).requires_grad_()
    both = torch.randn(3, keys, 2, 2, 8, dtype=dtype).permute(2, 0, 3, 1, 4).requires_grad_()
    mask = None if lengths is None else (torch.arange(keys) < torch.tensor(lengths)[:, None])[:, None, None]

    def reference(query: Tensor, both: Tensor) -> Tensor:
        scores = query @ both[0].mT / 8**0.5
        seen = torch.ones(rows, keys, dtype=torch.bool).tril() if causal else mask
        return (scores if seen is None else scores.masked_fill(~seen, float("-inf"))).softmax(-1) @ both[1]

    rtol, atol = (1e-9, 1e-12) if dtype == torch.float64 else (1e-4, 1e-5)
    assert_equal_to_float64(
        lambda query, both: attend(query, KeyValues(both), mask, causal=causal), reference, (query, both), rtol, atol
    )


def test_attention_in_bf16_is_close_to_fp32() -> None:
    torch.manual_seed(1)
    query, both = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 4, 9, 16)
    exact = attend(query, KeyValues(both), None, causal=True)
    rough = attend(query.bfloat16().requires_grad_(), KeyValues(both.bfloat16()), None, causal=True)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=BF16, atol=BF16)


def check_linear(outputs: int) -> None:
    torch.manual_seed(1)
    own = Linear(48, outputs)
    x = torch.randn(5, 7, 48, requires_grad=True)

    def computed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear(x, weight, bias)

    def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.einsum("bti,oi->bto", x, weight) + bias

    assert_equal_to_float64(computed, reference, (x, own.weight, own.bias), rtol=1e-4, atol=1e-5)
    assert torch.equal(own(x), linear(x, own.weight, own.bias))


@pytest.fixture
def probe_again() -> Iterator[None]:
    """Forgets the result of the oneDNN probe before and after the test."""
    products.uses_one_dnn.cache_clear()
    yield
    products.uses_one_dnn.cache_clear()


@pytest.mark.parametrize("outputs", [24, 96])
@pytest.mark.parametrize("one_dnn", [True, False])
def test_linear(outputs: int, one_dnn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if one_dnn and not products.uses_one_dnn():
        pytest.skip("this processor has no AVX-512, or PyTorch no oneDNN operation")
    monkeypatch.setattr(products, "uses_one_dnn", lambda: one_dnn)
    check_linear(outputs)


@pytest.mark.parametrize("one_dnn", [True, False])
def test_a_wrong_product_is_noticed(one_dnn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above could not fail. Both kinds of product are replaced, so any processor can run this."""

    def wrong(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = x @ weight.t() * 1.001
        return product if bias is None else product + bias

    monkeypatch.setattr(products, "uses_one_dnn", lambda: one_dnn)
    monkeypatch.setattr(products, "_product", wrong)
    monkeypatch.setattr(functional, "linear", wrong)
    with pytest.raises(AssertionError, match="not close"):
        check_linear(24)


def wrong_numbers(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, weight, bias) + 1


def missing(*_: object) -> Tensor:
    raise AttributeError("no such operation\nmore")


def other_signature(*_: object) -> Tensor:
    raise RuntimeError("expected at most 4 arguments")


@pytest.mark.parametrize(
    ("product", "problem"),
    [
        (wrong_numbers, "gives wrong numbers in torch.float32"),
        (missing, r"cannot be called \(no such operation\)"),
        (other_signature, "cannot be called"),
    ],
)
def test_a_one_dnn_operation_that_does_not_work_is_not_used(
    product: Callable[..., Tensor],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    probe_again: None,
) -> None:
    """It is tried once against PyTorch's product, also under autocast, and one line of the log says what is wrong."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(products, "_product", product)
    with caplog.at_level(logging.WARNING), torch.autocast("cpu", torch.bfloat16):
        assert not products.uses_one_dnn()
        assert not products.uses_one_dnn()
    [record] = caplog.records
    assert "training on this CPU uses slower products" in record.getMessage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_product", product)
        check_linear(24)
    assert re.search(problem, record.getMessage())


def test_the_probe_accepts_a_product_that_is_right(monkeypatch: pytest.MonkeyPatch, probe_again: None) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(products, "_product", functional.linear)
    with torch.autocast("cpu", torch.bfloat16):
        assert products.uses_one_dnn()


def test_linear_under_autocast() -> None:
    torch.manual_seed(1)
    weight, x = (torch.randn(96, 48) / 7).requires_grad_(), torch.randn(5, 7, 48, requires_grad=True)

    def computed(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found = linear(x, weight)
        assert found.dtype == torch.bfloat16
        return found

    assert_equal_to_float64(computed, lambda x, weight: x @ weight.t(), (x, weight), 2 * BF16, 2 * BF16)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_cross_entropy(label_smoothing: float) -> None:
    torch.manual_seed(1)
    logits, targets = (torch.randn(300, 4000) * 5).requires_grad_(), torch.randint(4000, (300,))

    def reference(logits: Tensor) -> Tensor:
        log_probabilities = logits.log_softmax(-1)
        chosen = log_probabilities.gather(1, targets[:, None]).sum()
        return -(1 - label_smoothing) * chosen - label_smoothing * log_probabilities.mean(-1).sum()

    def computed(logits: Tensor) -> Tensor:
        return summed_cross_entropy(logits, targets, label_smoothing)

    assert_equal_to_float64(computed, reference, (logits,), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    heads = torch.randn(3, 4, 5, 6).to(dtype).requires_grad_()
    gates = torch.rand(4, requires_grad=True)
    rtol, atol = (1e-5, 1e-5) if dtype == torch.float32 else (BF16, 0.1)
    assert_equal_to_float64(gated, lambda heads, gates: heads * gates[:, None, None], (heads, gates), rtol, atol)


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
