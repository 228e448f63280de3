"""The graph builder."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.compiler.graph import GraphBuilder


def test_a_weight_is_asked_for_twice() -> None:
    g = GraphBuilder("g")
    ones = np.ones((2, 3), np.float32)
    assert g.weight("w", ones) is g.weight("w", ones.copy())


@pytest.mark.parametrize(
    "other", [np.zeros((2, 3), np.float32), np.ones((3, 2), np.float32), np.ones((2, 3), np.float64)]
)
def test_one_name_for_two_weights_is_an_error(other: np.ndarray) -> None:
    g = GraphBuilder("g")
    g.weight("w", np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="graph g: initializer 'w' already exists with other numbers"):
        g.weight("w", other)


def test_weights_are_not_copied() -> None:
    g, ones = GraphBuilder("g"), np.ones((2, 3), np.float32)
    value = g.weight("w", ones)
    assert value.const_value is not None
    assert value.const_value.numpy() is ones
