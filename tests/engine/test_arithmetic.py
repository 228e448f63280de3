"""The arithmetic that executors share: its order of sums, its functions, and its special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hmc.artifact.program.operations import Range
from hmc.engine.arithmetic import (
    LANES,
    activate,
    dot,
    erf,
    exact_dot,
    exp,
    lane_sum,
    log,
    norm,
    quantise,
    softmax,
    weighted_sum,
)

F = np.float32


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of very different sizes, whose sum depends on its order."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-4, 4, shape)).astype(F)


def by_hand(values: np.ndarray) -> np.float32:
    """`lane_sum` of one row, number by number."""
    lanes = [F(0)] * LANES
    for index, value in enumerate(values):
        lanes[index % LANES] = F(lanes[index % LANES] + value)
    for width in (8, 4, 2, 1):
        lanes = [F(lanes[i] + lanes[i + width]) for i in range(width)]
    return lanes[0]


@pytest.mark.parametrize("count", [1, 7, 15, 16, 17, 31, 32, 64, 257])
def test_sums_have_one_order(count: int) -> None:
    values = spread(3, count)
    assert [by_hand(row) for row in values] == lane_sum(values).tolist()


def test_another_order_has_other_bits() -> None:
    values = spread(200, 256)
    assert (lane_sum(values) != lane_sum(values[:, ::-1].copy())).mean() > 0.5
    assert (lane_sum(values) != values.sum(axis=1)).mean() > 0.2


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 1, 1), (1, 17, 5), (4, 256, 33), (3, 40, 300)])
def test_products_are_sums_of_products(rows: int, inputs: int, outputs: int) -> None:
    x, weight = spread(rows, inputs), spread(outputs, inputs, seed=1)
    expected = [[by_hand(row * column) for column in weight] for row in x]
    np.testing.assert_array_equal(dot(x, weight), np.array(expected, F))


def test_integer_products_are_exact() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-255, 256, (5, 4096)).astype(np.int32)
    weight = rng.integers(-127, 128, (4096, 7)).astype(np.int8)
    np.testing.assert_array_equal(exact_dot(rows, weight), rows.astype(np.int64) @ weight.astype(np.int64))


@pytest.mark.parametrize(
    ("ours", "exact", "low", "high", "tolerance"),
    [
        (exp, math.exp, -87, 88, 1.2e-7),
        (log, math.log, 1e-30, 1e30, 2e-7),
        (erf, math.erf, -6, 6, 2.5e-7),
    ],
)
def test_functions(
    ours: Callable[[np.ndarray], np.ndarray], exact: Callable[[float], float], low: float, high: float, tolerance: float
) -> None:
    x = np.linspace(low, high, 20_001) if low < 0 else np.exp(np.linspace(np.log(low), np.log(high), 20_001))
    x = x.astype(F)
    expected = np.array([exact(float(value)) for value in x])

    def error(found: np.ndarray) -> float:
        return float((np.abs(found - expected) / np.maximum(np.abs(expected), 1e-3)).max())

    assert error(ours(x)) < tolerance
    assert error(ours((x * F(1 + 1e-6)).astype(F))) > tolerance, "the planted error: an argument of less precision"


def test_special_values() -> None:
    x = np.array([-np.inf, -88, 0, 89, np.inf, np.nan], F)
    np.testing.assert_array_equal(exp(x), np.array([0, 0, 1, np.inf, np.inf, np.nan], F))
    np.testing.assert_array_equal(
        log(np.array([0, 1, np.inf, -1, np.nan], F)), np.array([-np.inf, 0, np.inf, np.nan, np.nan], F)
    )
    np.testing.assert_array_equal(erf(np.array([-9, 0, 9, np.nan], F)), np.array([-1, 0, 1, np.nan], F))
    for name in ("relu", "swish", "gelu"):
        assert np.isnan(activate(np.array([np.nan], F), name))
        assert activate(np.array([0], F), name) == 0


def test_norm_takes_the_variance_in_a_second_pass() -> None:
    x = (spread(1, 256)[0] * F(1e-3) + F(1000)).astype(F)
    result = norm(x[None], np.ones(256, F), np.zeros(256, F), 1e-5)[0]
    exact = (x.astype(np.float64) - x.astype(np.float64).mean()) / np.sqrt(x.astype(np.float64).var() + 1e-5)
    assert np.abs(result - exact).max() < 2e-3
    one_pass = float((x * x).mean() - x.mean() ** 2)  # the planted error
    assert np.abs((x - x.mean()) / np.sqrt(max(one_pass, 0) + 1e-5) - exact).max() > 2e-3


def test_quantisation_rounds_half_to_even_after_clamping() -> None:
    to = Range(scale=0.5, zero_point=10)
    x = np.array([0, 0.25, 0.75, 1.25, -0.25, 1e9, -1e9, np.inf, np.nan], F)
    assert quantise(x, to).tolist() == [10, 10, 12, 12, 10, 255, 0, 255, 10]
    signed = Range(scale=0.5, signed=True)
    assert quantise(np.array([1e9, -1e9, 0.25, 0.75], F), signed).tolist() == [127, -128, 0, 2]


def test_softmax_and_weighted_sums() -> None:
    scores = np.array([[0, -np.inf, 1], [3, 3, 3]], F)
    weights = softmax(scores)
    assert weights[0, 1] == 0
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    assert abs(weights.astype(np.float16).sum(axis=1, dtype=F) - 1).max() > 1e-6, "the planted error: 16 bits"
    values = spread(2, 3, 4)
    expected = np.zeros((2, 4), F)
    for row, column in np.ndindex(2, 4):
        for place in range(3):
            expected[row, column] += weights[row, place] * values[row, place, column]
    np.testing.assert_array_equal(weighted_sum(weights, values), expected)
