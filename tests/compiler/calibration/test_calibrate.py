"""Activation ranges: zero is exact, outliers are clipped only when that lowers the error, memory has a bound."""

import numpy as np
import pytest

from hmc.compiler.calibration.calibrate import BINS, COUNTED_AT_ONCE, LEAST_SPAN, Histogram, fit_range
from hmc.compiler.checks.runner import batches
from hmc.compiler.precisions.ranges import ActivationRange


def fitted(values: np.ndarray) -> ActivationRange:
    histogram = Histogram(float(values.min()), float(values.max()))
    for part in np.array_split(values, 7):
        histogram.add(part)
    return fit_range(histogram)


def restored(values: np.ndarray) -> np.ndarray:
    r = fitted(values)
    return (np.clip(np.round(values / r.scale) + r.zero_point, 0, 255) - r.zero_point) * r.scale


def test_even_values_keep_their_whole_range() -> None:
    values = np.linspace(-1, 3, 10_001).astype(np.float32)
    assert np.abs(restored(values) - values).max() <= fitted(values).scale * 0.51
    assert 0.9 <= fitted(values).scale * 255 / 4 <= 1.01


def test_a_lone_outlier_is_clipped() -> None:
    values = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    values[0] = 10.0
    assert fitted(values).scale * 255 < 13  # the whole range is about 15


def test_values_of_one_sign_use_all_steps() -> None:
    r = fitted(np.abs(np.random.default_rng(0).standard_normal(1000)).astype(np.float32))
    assert r.zero_point == 0


@pytest.mark.parametrize(
    ("least", "most"), [(1.0820272, 1.0820278), (-0.08829, -0.0882899), (0, 1e-38), (-1e-38, 0), (0, 0), (5, 5)]
)
def test_values_that_hardly_vary(least: float, most: float) -> None:
    values = np.linspace(least, most, 100).astype(np.float32)
    assert np.abs(restored(values) - values).max() <= max(abs(least), abs(most), LEAST_SPAN) / 250


def test_a_histogram_counts_what_all_values_at_once_would_give() -> None:
    values = np.random.default_rng(1).standard_normal(3 * COUNTED_AT_ONCE + 5).astype(np.float32)
    histogram = Histogram(float(values.min()), float(values.max()))
    for start in range(0, len(values), 1000):
        histogram.add(values[start : start + 1000])
        assert sum(map(len, histogram._waiting)) < COUNTED_AT_ONCE  # the values that are kept have a bound
    centres, counts = histogram.filled()
    expected, edges = np.histogram(values, BINS, range=(histogram.low, histogram.high))
    assert np.array_equal(counts, expected[expected > 0])
    assert np.array_equal(centres, ((edges[:-1] + edges[1:]) / 2)[expected > 0])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([4000], [1]),  # a sentence that is too long alone is a batch
        ([5] * 33, [16, 16, 1]),
        ([128] * 16, [16]),
        ([128] * 15 + [129, 129], [15, 2]),
        ([600, 600, 600, 1200], [3, 1]),
    ],
)
def test_batches_have_a_bound(lengths: list[int], expected: list[int]) -> None:
    sources = [[0] * length for length in lengths]
    assert [len(sources[part]) for part in batches(sources)] == expected
