"""Activation ranges: zero is exact, outliers are clipped only when that lowers the error."""

import numpy as np
import pytest

from hmc.compiler.calibrate import LEAST_SPAN, fit_range


def restored(values: np.ndarray) -> np.ndarray:
    r = fit_range(values)
    return (np.clip(np.round(values / r.scale) + r.zero_point, 0, 255) - r.zero_point) * r.scale


def test_even_values_keep_their_whole_range() -> None:
    values = np.linspace(-1, 3, 10_001).astype(np.float32)
    assert np.abs(restored(values) - values).max() <= fit_range(values).scale * 0.51
    assert 0.9 <= fit_range(values).scale * 255 / 4 <= 1.01


def test_a_lone_outlier_is_clipped() -> None:
    values = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    values[0] = 10.0
    assert fit_range(values).scale * 255 < 13  # the whole range is about 15


def test_values_of_one_sign_use_all_steps() -> None:
    r = fit_range(np.abs(np.random.default_rng(0).standard_normal(1000)).astype(np.float32))
    assert r.zero_point == 0


@pytest.mark.parametrize(
    ("least", "most"), [(1.0820272, 1.0820278), (-0.08829, -0.0882899), (0, 1e-38), (-1e-38, 0), (0, 0), (5, 5)]
)
def test_values_that_hardly_vary(least: float, most: float) -> None:
    values = np.linspace(least, most, 100).astype(np.float32)
    assert np.abs(restored(values) - values).max() <= max(abs(least), abs(most), LEAST_SPAN) / 250
