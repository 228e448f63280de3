"""4-bit weights: what they are restored to, and what the graph computes with them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from hmc.compiler.checks.session import OpenGraph
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.precisions.int4 import BLOCK, Int4Linears, quantize_blocks
from hmc.compiler.precisions.ranges import ActivationRange


def restored(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    packed, scales = quantize_blocks(weight)
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, BLOCK).astype(np.float32) - 8
    return (values * scales[..., None]).reshape(len(weight), -1)[:, : weight.shape[1]]


def test_sixteen_even_values_are_kept_as_they_are() -> None:
    weight = np.tile(np.arange(-8, 8), (3, 4)).astype(np.float32) * 0.25
    assert restored(weight) == pytest.approx(weight, abs=0.25 * 0.2)


def test_the_side_that_is_longer_gets_the_extra_value() -> None:
    weight = np.zeros((2, BLOCK), np.float32)
    weight[0, 0], weight[1, 0] = 1.0, -1.0
    assert np.abs(restored(weight) - weight).max() < 0.07


def test_error_is_a_share_of_each_blocks_own_largest_weight() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((16, 96)).astype(np.float32)
    weight[:, :BLOCK] *= 100
    error = np.abs(restored(weight) - weight)
    assert error[:, BLOCK:].max() < 1.5
    assert np.sqrt(np.square(error[:, BLOCK:]).mean()) < 0.12


@pytest.mark.parametrize("width", [64, 50, 7])
@pytest.mark.parametrize("rows", [1, 5])
def test_the_graph_computes_with_the_restored_weights(width: int, rows: int) -> None:
    rng = np.random.default_rng(1)
    weight, bias = rng.standard_normal((24, width)).astype(np.float32), rng.standard_normal(24).astype(np.float32)
    g = GraphBuilder("linear")
    x = g.input("x", "float32", ["N", width])
    linears = Int4Linears({"a": ActivationRange(1.0, 0)})
    g.output(linears.linear(g, "a", x, weight, bias), "y", "float32", ["N", 24])
    graph = OpenGraph.from_model(g.model({}))
    values = rng.standard_normal((rows, width)).astype(np.float32)
    expected = values @ restored(weight).T + bias
    assert graph.run({"x": values})["y"] == pytest.approx(expected, abs=0.05 * np.sqrt(width))


def test_a_linear_without_a_range_stays_in_fp32() -> None:
    g = GraphBuilder("linear")
    x = g.input("x", "float32", ["N", 64])
    weight = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    g.output(Int4Linears({}).linear(g, "a", x, weight, None), "y", "float32", ["N", 8])
    values = np.ones((1, 64), np.float32)
    answer = OpenGraph.from_model(g.model({})).run({"x": values})["y"]
    assert answer == pytest.approx(values @ weight.T, rel=1e-5)
