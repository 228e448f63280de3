"""8-bit weights: scales are as small as exact products on every processor allow."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hmc.compiler.checks.session import OpenGraph
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.precisions.int8 import quantize_columns


def test_columns_are_quantised_to_half_a_step() -> None:
    weight = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    integers, scales = quantize_columns(weight)
    assert integers.shape == (40, 6)
    assert np.abs(integers.T * scales[:, None] - weight).max() <= scales.max() / 2 + 1e-6


@pytest.mark.parametrize("width", [2, 40, 41])
def test_a_product_is_exact_on_every_processor(width: int) -> None:
    """Processors without VNNI add the products of two neighbours in 16 bits, which saturate."""
    rng = np.random.default_rng(1)
    weight = rng.standard_t(2, (300, width)).astype(np.float32)
    weight[:2] = [[1], [-1]]
    integers = quantize_columns(weight)[0].astype(np.int64)
    given = rng.integers(0, 256, (8, width))
    given[0], given[1] = 255, 255 * (np.arange(width) % 2)
    neighbours = np.pad(integers, ((0, width % 2), (0, 0))).reshape(-1, 2, 300)
    assert 255 * np.maximum(neighbours, 0).sum(axis=1).max() < 2**15
    assert 255 * np.minimum(neighbours, 0).sum(axis=1).min() >= -(2**15)
    np.testing.assert_array_equal(product(given.astype(np.uint8), integers.astype(np.int8)), given @ integers)


def test_no_column_is_coarser_than_that_takes() -> None:
    weight = np.random.default_rng(2).standard_normal((300, 40)).astype(np.float32)
    neighbours = quantize_columns(weight)[0].astype(int).reshape(20, 2, 300)
    same_sign = np.maximum(np.maximum(neighbours, 0).sum(axis=1), np.maximum(-neighbours, 0).sum(axis=1))
    assert same_sign.max(axis=0).min() >= 126
    alone = np.zeros((1, 40), np.float32)
    alone[0, 7] = -3
    assert quantize_columns(alone)[0].min() == -127


def product(left: npt.NDArray[np.uint8], right: npt.NDArray[np.int8]) -> npt.NDArray[Any]:
    g = GraphBuilder("product")
    given = g.input("given", "uint8", ["N", left.shape[1]])
    one, zero = g.weight("one", np.asarray(1, np.float32)), g.weight("zero", np.asarray(0, np.uint8))
    y = g.op("MatMulIntegerToFloat", [given, g.weight("right", right), one, one, zero], domain=MICROSOFT)
    g.output(y, "y", "float32", ["N", right.shape[1]])
    result: npt.NDArray[Any] = OpenGraph.from_model(g.model({})).run({"given": left})["y"]
    return result
