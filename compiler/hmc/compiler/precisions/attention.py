"""Attention of the decoder over cached keys and values: softmax(q kᵀ / √D) v (Vaswani et al. 2017, equation 1).

The rows of a sentence are its query positions, so they share its keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.precisions.ranges import ActivationRange

MASKED = -1e4
"""Device form adds it to the scores of nodes that a row does not see. fp16 can hold it, and its exponential is 0."""


@dataclass
class Visible:
    """Which of the N cached places each row attends to. All layers of a graph share one.

    Either `bias` `[B, 1, k, N]` fp32 is added to the scores: 0 for visible places, -inf for all others. Or `lengths`
    `[B]` int32 says how many places, from the first on, all rows of a sentence attend to.
    """

    rows: ir.Value
    """`[2]` int64: B, k."""
    heads: int
    dim: int
    bias: ir.Value | None = None
    lengths: ir.Value | None = None
    _written: dict[str, ir.Value] = field(default_factory=dict)

    def with_heads(self, heads: int) -> Visible:
        """The same for a layer with `heads` heads."""
        return replace(self, heads=heads)

    def shape(self, g: GraphBuilder, *sizes: int) -> ir.Value:
        """`[2 + len(sizes)]` int64: B, k and `sizes`."""
        value: ir.Value = g.op("Concat", [self.rows, g.ints(*sizes)], axis=0)
        return value

    def masked(self, g: GraphBuilder, scores: ir.Value) -> ir.Value:
        """scores `[B, H, k, N]` → the same with -inf at places that are not visible."""
        value: ir.Value = g.op("Add", [scores, self.bias or self._from_lengths(g, scores)])
        return value

    def transposed(self, g: GraphBuilder, scores: ir.Value) -> ir.Value:
        """scores `[B, H, N, k]` → `[B, H, k, N]`, by a product with the identity matrix, which is exact.

        ONNX Runtime's Transpose of the last two axes takes several times as long with two threads.
        """
        if "identity" not in self._written:
            k = g.op("Slice", [self.rows, g.ints(1), g.ints(2)])
            zeros = g.op("ConstantOfShape", [g.op("Concat", [k, k], axis=0)])
            self._written["identity"] = g.op("EyeLike", [zeros])
        value: ir.Value = g.op("FusedMatMul", [self._written["identity"], scores], domain=MICROSOFT, transB=1)
        return value

    def _from_lengths(self, g: GraphBuilder, scores: ir.Value) -> ir.Value:
        """`[B, 1, 1, N]`: 0 before each sentence's length, -inf from there on. Written once a graph."""
        if "bias" not in self._written:
            count = g.op("Squeeze", [g.op("Shape", [scores], start=3, end=4), g.ints(0)])
            zero, one = (g.weight(f"const.scalar_{n}", np.asarray(n, np.int64)) for n in (0, 1))
            places = g.op("Cast", [g.op("Range", [zero, count, one])], to=int(ir.DataType.INT32))
            visible = g.op("Less", [places, g.op("Unsqueeze", [self.lengths, g.ints(1, 2, 3)])])
            values = [g.weight(f"const.{n}", np.asarray(v, np.float32)) for n, v in (("zero", 0), ("never", -np.inf))]
            self._written["bias"] = g.op("Where", [visible, *values])
        return self._written["bias"]


def attend_float(
    g: GraphBuilder,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    visible: Visible,
    bias: ir.Value | None = None,
) -> ir.Value:
    """query `[B, k, H, D]`, key and value `[B, H, N, D]` → `[R, H·D]`, by the fused operator.

    bias: `[3·H·D]`; its first third is added to the queries. Cached keys and values get no bias.
    """
    inner = visible.heads * visible.dim
    query = g.op("Reshape", [query, g.ints(0, 0, inner)])
    inputs = [query, key, value, bias, visible.lengths, visible.bias]
    if inputs[-1] is None:
        inputs.pop()
    y = g.op("MultiHeadAttention", inputs, domain=MICROSOFT, num_heads=visible.heads)
    result: ir.Value = g.op("Reshape", [y, g.ints(-1, inner)])
    return result


@dataclass
class Int8Attention:
    """Attention over 8-bit keys and values; attention weights are quantised to steps of 1/255.

    Every step reads the caches of all sentences, so its cost is proportional to their bytes. There are two forms:

    - `source`: keys of source positions are written once. The encoder transposes them to `[B, H, D, S]` int8, the right
      side of q kᵀ.
    - `nodes`: every step adds keys of target positions. They stay as written, `[B, H, N, D]` uint8, and are the left
      side of k qᵀ, which is then transposed.
    """

    g: GraphBuilder
    name: str
    visible: Visible
    ranges: Mapping[str, ActivationRange]
    """Ranges of `query`, `key` and `value`."""
    output: ActivationRange | None = None
    """Range of the result, which is then uint8; None: it is fp32."""

    def source(self, query: ir.Value, key: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """query `[B, k, H, D]` fp32, key `[B, H, D, S]` and value `[B, H, S, D]` int8 → the result `[R, H·D]` and the
        attention weights `[B, H, k, S]`."""
        query_range = self.ranges["query"]
        quantized = self._by_heads(query, query_range.scale, np.asarray(query_range.zero_point, np.uint8), [0, 2, 1, 3])
        factor = self.ranges["key"].symmetric_scale * self.visible.dim**-0.5
        scores = self._product(quantized, key, query_range.scale, factor, query_range.zero_point)
        return self._rest(scores, value)

    def nodes(self, query: ir.Value, key: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """query `[B, k, H, D]` fp32, key `[B, H, N, D]` uint8 and value `[B, H, N, D]` int8 → the result `[R, H·D]`
        and the attention weights `[B, H, k, N]`."""
        scale = self.ranges["query"].symmetric_scale
        key_range = self.ranges["key"]
        right = self._by_heads(query, scale, np.asarray(0, np.int8), [0, 2, 3, 1])
        scores = self._product(key, right, key_range.scale, scale * self.visible.dim**-0.5, key_range.zero_point)
        return self._rest(self.visible.transposed(self.g, scores), value)

    def _by_heads(self, query: ir.Value, scale: float, zero: npt.NDArray[Any], perm: list[int]) -> ir.Value:
        g = self.g
        name = f"{self.name}.query"
        quantized = g.op(
            "QuantizeLinear", [query, self._scalar(f"{name}.scale", scale), g.weight(f"{name}.zero_point", zero)]
        )
        value: ir.Value = g.op("Transpose", [quantized], perm=perm)
        return value

    def _rest(self, scores: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """scores `[B, H, k, N]` → the result `[R, H·D]` and the attention weights `[B, H, k, N]`."""
        g = self.g
        visible = self.visible
        weights = g.op("Softmax", [visible.masked(g, scores)], axis=-1)
        zero = g.weight("const.zero_uint8", np.asarray(0, np.uint8))
        quantized = g.op("QuantizeLinear", [weights, self._scalar("const.weight_scale", 1 / 255), zero])
        product = self._product if self.output is None else self._quantized_product
        y = product(quantized, value, 1 / 255, self.ranges["value"].symmetric_scale, 0)  # [B, H, k, D]
        y = g.op("Transpose", [y], perm=[0, 2, 1, 3])
        y = g.op("Reshape", [y, g.ints(-1, visible.heads * visible.dim)])
        y.dtype = ir.DataType.FLOAT if self.output is None else ir.DataType.UINT8
        return y, weights

    def _product(self, left: ir.Value, right: ir.Value, left_scale: float, right_scale: float, zero: int) -> ir.Value:
        """uint8 left with zero point `zero` times int8 right, as fp32."""
        g = self.g
        count = len(g.nodes)
        scales = [
            self._scalar(f"{self.name}.product_{count}.{n}", s) for n, s in (("l", left_scale), ("r", right_scale))
        ]
        zero_point = g.weight(f"const.zero_point_{zero}", np.asarray(zero, np.uint8))
        value: ir.Value = g.op("MatMulIntegerToFloat", [left, right, *scales, zero_point], domain=MICROSOFT)
        return value

    def _quantized_product(
        self, left: ir.Value, right: ir.Value, left_scale: float, right_scale: float, zero: int
    ) -> ir.Value:
        """The same product, quantised to the range `output`."""
        g = self.g
        name = f"{self.name}.output"
        output_range = self.output
        assert output_range is not None
        zero_left = np.asarray(zero, np.uint8)
        zero_right = np.asarray(0, np.int8)
        lefts = [left, self._scalar(f"{name}.l", left_scale), g.weight(f"const.zero_point_{zero}", zero_left)]
        rights = [right, self._scalar(f"{name}.r", right_scale), g.weight("const.zero_int8", zero_right)]
        zero_out = g.weight(f"{name}.zero_point", np.asarray(output_range.zero_point, np.uint8))
        scale_out = self._scalar(f"{name}.scale", output_range.scale)
        value: ir.Value = g.op("QLinearMatMul", [*lefts, *rights, scale_out, zero_out])
        return value

    def _scalar(self, name: str, value: float) -> ir.Value:
        return self.g.weight(name, np.asarray(value, np.float32))
