"""Correlation coefficients, intervals and p-values against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.artifact import InvalidRequestError
from hmc.training.analysis.across.correlate import pearson, ranks, spearman


def test_pearson_by_hand() -> None:
    """Deviations (-2, -1, 0, 1, 2) and (-1, -2, 1, 0, 2): products sum to 8, both squares to 10."""
    x, y = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    found = pearson(x, y, seed=1)
    assert found.value == pytest.approx(0.8)
    # tanh(atanh(0.8) ± 1.95996 / √2)
    assert (found.low, found.high) == pytest.approx((-0.28, 0.986), abs=0.002)


def test_fishers_interval_for_fifty_points() -> None:
    """r = 0.6, n = 50: tanh(0.6931 ± 1.95996 / √47) = 0.386 to 0.753."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50)
    noise = rng.standard_normal(50)
    x, noise = x - x.mean(), noise - noise.mean()
    noise -= x * (x @ noise) / (x @ x)
    y = 0.6 * x / np.linalg.norm(x) + 0.8 * noise / np.linalg.norm(noise)
    found = pearson(x, y, seed=1)
    assert (found.value, found.low, found.high) == pytest.approx((0.6, 0.386, 0.753), abs=0.001)
    assert found.p_value is not None
    assert found.p_value < 0.001


def test_permutation_p_value_of_a_perfect_order() -> None:
    """Of 5! orders two, rising and falling, are as far from zero: p = 2 / 120."""
    x = np.arange(5.0)
    assert pearson(x, x, seed=2).p_value == pytest.approx(2 / 120, abs=0.005)
    assert pearson(x, -x, seed=2).value == pytest.approx(-1)


def test_spearman_sees_order_only_and_ties_share_ranks() -> None:
    x = np.array([1.0, 2, 3, 4, 5, 6])
    assert spearman(x, np.exp(x), seed=1).value == pytest.approx(1)
    assert pearson(x, np.exp(x), seed=1).value < 0.9
    assert ranks(np.array([3.0, 1, 3, 2, 3])).tolist() == [4, 1, 4, 2, 4]


def test_independent_values_do_not_correlate() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, 200))
    assert (pearson(x, y, seed=1).p_value or 0) > 0.05
    assert spearman(x, y, seed=1).low < 0 < spearman(x, y, seed=1).high


@pytest.mark.parametrize(
    ("x", "message"),
    [([1.0, 2.0, 3.0], "3 heads: a correlation needs 4"), ([2.0] * 5, "same value on one of the texts")],
)
def test_nothing_to_correlate(x: list[float], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        pearson(np.array(x), np.arange(float(len(x))), seed=1)
