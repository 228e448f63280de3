"""8-bit weights, activations, keys and values, for CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.artifact.model.layers import AttentionSpec
from hmc.compiler.derived import Array, DerivedArrays
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.precisions.attention import Int8Attention, Visible, attend_float
from hmc.compiler.precisions.linears import FloatLinears, Parts, split_product
from hmc.compiler.precisions.ranges import ActivationRange

ROWS_AT_ONCE = 256
"""Rows of a weight that are quantised together: few enough to stay in the processor's cache."""


def quantize_columns(weight: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """weight `[out, in]` → int8 `[in, out]` and a scale per output column `[out]`: real = scale · q.

    The integers times any uint8 activations add up exactly on every processor. One without VNNI adds the products of
    inputs 2i and 2i + 1 in 16 bits, which saturate. So two neighbouring weights of one sign make at most 128 together:
    255 · 128 < 2¹⁵ (decision 19).
    """
    integers = np.empty((weight.shape[1], weight.shape[0]), np.int8)
    scales = np.empty(weight.shape[0], np.float32)
    for start in range(0, len(weight), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        scales[rows] = _scales(weight[rows])
        integers[:, rows] = np.round(weight[rows] / scales[rows, None]).astype(np.int8).T
    return integers, scales


def _scales(weight: Array) -> npt.NDArray[np.float32]:
    """weight `[out, in]` → `[out]`: the scale with which no two neighbours of one sign make more than 128 steps."""
    pairs = np.pad(weight, ((0, 0), (0, weight.shape[1] % 2))).reshape(len(weight), -1, 2)
    first = pairs[..., 0]
    second = pairs[..., 1]
    positive = (np.maximum(first, 0) + np.maximum(second, 0)).max(axis=1)
    negative = (np.maximum(-first, 0) + np.maximum(-second, 0)).max(axis=1)
    largest = np.maximum(positive, negative)
    scales: npt.NDArray[np.float32] = np.maximum(largest, 1e-8).astype(np.float32) / np.float32(127)
    return scales  # by 127, as rounding may add half a step to each of the two


def transpose(matrix: Array) -> Array:
    """The matrix with its axes exchanged, in C order."""
    return np.ascontiguousarray(matrix.T)


def rows_of(name: str) -> str:
    """Name of the tensor in which int8 graphs look up rows of the embedding `name`. The output projection has the same
    numbers transposed."""
    return f"{name.removesuffix('.weight')}.rows"


@dataclass
class Int8Linears:
    """int8 weights with a scale per output column; uint8 activations with static scales; 8-bit keys and values.

    Scales of activations are static. A dynamic scale would be taken over the whole batch, and a sentence's result would
    depend on the other sentences in it. A linear or attention layer that has no range stays in fp32.
    """

    ranges: Mapping[str, ActivationRange]
    """Name of a linear layer, or of `ATTENTION.query`, `.key` and `.value` → range."""
    dtype: str = "float32"
    derived: DerivedArrays = field(default_factory=DerivedArrays)
    quantises_embedding: ClassVar[bool] = True
    takes_uint8: ClassVar[bool] = True
    """Whether `linear` also takes an input that is already quantised to the layer's range."""

    def range_of(self, name: str) -> ActivationRange | None:
        return self.ranges.get(name)

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        if name not in self.ranges:
            return FloatLinears(derived=self.derived).linear(g, name, x, weight, bias)
        return self._product(g, name, name, self._quantized_input(g, name, x), weight, bias)

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        if name not in self.ranges:
            return split_product(self, g, name, x, parts)
        quantized = self._quantized_input(g, name, x)
        # One product for each part: splitting a joint one takes a tenth of the product's own time.
        return [self._product(g, name, part, quantized, weight, bias) for part, (weight, bias) in parts.items()]

    def _quantized_input(self, g: GraphBuilder, name: str, x: ir.Value) -> ir.Value:
        value: ir.Value = (
            x if x.dtype == ir.DataType.UINT8 else g.op("QuantizeLinear", [x, *self._input_range(g, name)])
        )
        return value

    def _input_range(self, g: GraphBuilder, name: str) -> tuple[ir.Value, ir.Value]:
        input_range = self.ranges[name]
        zero = g.weight(f"{name}.input_zero_point", np.asarray(input_range.zero_point, np.uint8))
        return g.weight(f"{name}.input_scale", np.asarray(input_range.scale, np.float32)), zero

    def _product(
        self, g: GraphBuilder, range_name: str, name: str, quantized: ir.Value, weight: Array, bias: Array | None
    ) -> ir.Value:
        """range_name: the name of the range of the input."""
        scale, zero = self._input_range(g, range_name)
        integers, scales = self.derived.get(quantize_columns, weight)
        inputs: list[ir.Value | None] = [
            quantized,
            g.weight(f"{name}.weight", integers),
            scale,
            g.weight(f"{name}.weight_scale", scales),
            zero,
            None,
        ]
        if bias is not None:
            inputs.append(g.weight(f"{name}.bias", bias.astype(np.float32)))
        value: ir.Value = g.op("MatMulIntegerToFloat", inputs, domain=MICROSOFT)
        return value

    def embedding(self, g: GraphBuilder, name: str, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        integers, scales = self.derived.get(quantize_columns, weight)  # one scale a row of the vocabulary
        table = g.weight(rows_of(name), self.derived.get(transpose, integers))
        scale = g.weight(f"{rows_of(name)}_scale", (scales * np.float32(factor))[:, None])
        rows = g.op("Cast", [g.op("Gather", [table, ids], axis=0)], to=int(ir.DataType.FLOAT))
        value: ir.Value = g.op("Mul", [rows, g.op("Gather", [scale, ids], axis=0)])
        return value

    def cache_dtype(self, attention: AttentionSpec, part: str) -> str:
        if not self._quantized(attention):
            return self.dtype
        return "uint8" if part == "key" and not self.transposed(attention) else "int8"

    def row_scales(self, attention: AttentionSpec) -> dict[str, float] | None:
        if not self._quantized(attention):
            return None
        return {part: self.ranges[f"{attention.name}.{part}"].symmetric_scale for part in ("key", "value")}

    def transposed(self, attention: AttentionSpec) -> bool:
        return attention.kind == "cross" and self._quantized(attention)

    def cached(self, g: GraphBuilder, attention: AttentionSpec, part: str, x: ir.Value) -> ir.Value:
        if not self._quantized(attention):
            return x
        name = f"{attention.name}.{part}"
        value_range = self.ranges[f"{attention.name}.{part}"]
        scale = value_range.symmetric_scale
        zero = np.asarray(0, np.int8)
        if self.cache_dtype(attention, part) == "uint8":
            scale = value_range.scale
            zero = np.asarray(value_range.zero_point, np.uint8)
        factors = g.weight(f"{name}.scale", np.asarray(scale, np.float32)), g.weight(f"{name}.zero_point", zero)
        value: ir.Value = g.op("QuantizeLinear", [x, *factors])
        return value

    def attend(
        self,
        g: GraphBuilder,
        attention: AttentionSpec,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        visible: Visible,
    ) -> tuple[ir.Value, ir.Value | None]:
        if not self._quantized(attention):
            return attend_float(g, query, key, value, visible), None
        ranges = {part: self.ranges[f"{attention.name}.{part}"] for part in ("query", "key", "value")}
        output = self.ranges.get(attention.output.name) if self.takes_uint8 else None
        int8 = Int8Attention(g, attention.name, visible, ranges, output)
        return (int8.source if self.transposed(attention) else int8.nodes)(query, key, value)

    def _quantized(self, attention: AttentionSpec) -> bool:
        return all(f"{attention.name}.{part}" in self.ranges for part in ("query", "key", "value"))
