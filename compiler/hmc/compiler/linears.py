"""How a linear layer, and attention over cached keys and values, is authored at each precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.compiler.attends import Int8Attention, Visible, attend_float
from hmc.compiler.graph import MICROSOFT, GraphBuilder, of_type
from hmc.compiler.ranges import ActivationRange

Array = npt.NDArray[Any]
Parts = Mapping[str, tuple[Array, Array]]
"""Name → weight `[out, in]` and bias `[out]` of linears of one size."""


class Linears(Protocol):
    """Authors y = x Wᵀ + b, and what is cached, for one precision."""

    dtype: str
    """Type of activations in the graph: float32, float16 or bfloat16."""

    def range_of(self, name: str) -> ActivationRange | None:
        """The range in which a linear's input is quantised; None where it is not."""
        ...

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        """x `[N, in]`, weight `[out, in]`, bias `[out]` → `[N, out]`."""
        ...

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        """What `linear` gives for each of `parts`, of one input x, for which `name` stands."""
        ...

    def embedding(self, g: GraphBuilder, name: str, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        """ids of any shape, weight `[V, d]`, the checkpoint's tensor `name` → rows times `factor`, `[…, d]`."""
        ...

    def cache_dtype(self, attention: str, part: str) -> str:
        """Type in which an attention layer of the decoder keeps its `key` or `value`; `attention` is its prefix."""
        ...

    def row_scales(self, attention: str) -> dict[str, float] | None:
        """Of `key` and `value` where attention over rows keeps them as int8; None where in the type of activations."""
        ...

    def turned(self, attention: str) -> bool:
        """Whether a cross-attention layer attends to keys as `[B, H, D, S]`, but for rows, and not `[B, H, S, D]`."""
        ...

    def cached(self, g: GraphBuilder, attention: str, part: str, x: ir.Value) -> ir.Value:
        """Keys or values of any shape in the type in which they are kept."""
        ...

    def attend(
        self, g: GraphBuilder, attention: str, query: ir.Value, key: ir.Value, value: ir.Value, visible: Visible
    ) -> tuple[ir.Value, ir.Value | None]:
        """query `[B, k, H, D]`, kept key and value `[B, H, N, D]` → the input of `out_proj`, `[R, H·D]`, in a type that
        `linear` takes; and the weights `[B, H, k, N]`, where the precision computes them by themselves."""
        ...


@dataclass
class FloatLinears:
    """fp32 (CPU), fp16 or bf16 (CUDA): one Gemm. The embedding and the output projection share one tensor."""

    dtype: str = "float32"

    def range_of(self, name: str) -> ActivationRange | None:  # noqa: ARG002 - one interface with Int8Linears
        return None

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        inputs = [x, g.weight(f"{name}.weight", of_type(weight, self.dtype))]
        if bias is not None:
            inputs.append(g.weight(f"{name}.bias", of_type(bias, self.dtype)))
        value: ir.Value = g.op("Gemm", inputs, transB=1)
        return value

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        return cut_apart(self, g, name, x, parts)

    def embedding(self, g: GraphBuilder, name: str, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        rows = g.op("Gather", [g.weight(name, of_type(weight, self.dtype)), ids], axis=0)
        value: ir.Value = g.op("Mul", [rows, g.weight("embedding.factor", of_type(np.asarray(factor), self.dtype))])
        return value

    def cache_dtype(self, attention: str, part: str) -> str:  # noqa: ARG002 - one interface with Int8Linears
        return self.dtype

    def row_scales(self, attention: str) -> dict[str, float] | None:  # noqa: ARG002
        return None

    def turned(self, attention: str) -> bool:  # noqa: ARG002
        return False

    def cached(self, g: GraphBuilder, attention: str, part: str, x: ir.Value) -> ir.Value:  # noqa: ARG002
        return x

    def attend(
        self,
        g: GraphBuilder,
        attention: str,  # noqa: ARG002
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        visible: Visible,
    ) -> tuple[ir.Value, ir.Value | None]:
        return attend_float(g, query, key, value, visible), None


def cut_apart(linears: Linears, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
    """`Linears.several` as one product, `[N, out]` of all parts, and its pieces."""
    weights, biases = zip(*parts.values(), strict=True)
    joint = linears.linear(g, name, x, np.concatenate(weights), np.concatenate(biases))
    values: Sequence[ir.Value] = g.op("Split", [joint], outputs=len(parts), axis=1, num_outputs=len(parts))
    return values


def quantize_columns(weight: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """weight `[out, in]` → int8 `[in, out]` and a scale per output column `[out]`, symmetric.

    Every processor multiplies the result by uint8 exactly. Without VNNI they add the products of inputs 2i and 2i + 1
    in 16 bits, which saturate, so neighbours of one sign make at most 128: 255 · 128 < 2¹⁵ (decision 19).
    """
    pairs = np.pad(weight, ((0, 0), (0, weight.shape[1] % 2))).reshape(len(weight), -1, 2)
    largest = np.maximum(np.maximum(pairs, 0).sum(axis=2).max(axis=1), np.maximum(-pairs, 0).sum(axis=2).max(axis=1))
    scale = np.maximum(largest, 1e-8).astype(np.float32) / np.float32(127)  # and 128 by rounding two of them up
    return np.ascontiguousarray(np.round(weight / scale[:, None]).astype(np.int8).T), scale


def rows_of(name: str) -> str:
    """Of an embedding matrix, the tensor that int8 graphs look rows up in: a product wants it turned."""
    return f"{name.removesuffix('.weight')}.rows"


@dataclass
class Int8Linears:
    """int8 weights per output column; uint8 activations with static, calibrated scales; 8-bit keys and values.

    Static, because a dynamic scale is taken over the whole batch and makes a sentence depend on its neighbours.
    A linear, or an attention layer, without a range stays in fp32.
    """

    ranges: dict[str, ActivationRange]
    dtype: str = "float32"
    takes_uint8: ClassVar[bool] = True
    """Whether `linear` also takes an input of the name's range as uint8."""

    def range_of(self, name: str) -> ActivationRange | None:
        return self.ranges.get(name)

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        if name not in self.ranges:
            return FloatLinears().linear(g, name, x, weight, bias)
        return self._product(g, name, name, self._quantized_input(g, name, x), weight, bias)

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        if name not in self.ranges:
            return cut_apart(self, g, name, x, parts)
        quantized = self._quantized_input(g, name, x)
        # A product each: to cut a joint one apart takes as long as a tenth of it.
        return [self._product(g, name, part, quantized, weight, bias) for part, (weight, bias) in parts.items()]

    def _quantized_input(self, g: GraphBuilder, name: str, x: ir.Value) -> ir.Value:
        value: ir.Value = (
            x if x.dtype == ir.DataType.UINT8 else g.op("QuantizeLinear", [x, *self._input_range(g, name)])
        )
        return value

    def _input_range(self, g: GraphBuilder, name: str) -> tuple[ir.Value, ir.Value]:
        found = self.ranges[name]
        zero = g.weight(f"{name}.input_zero_point", np.asarray(found.zero_point, np.uint8))
        return g.weight(f"{name}.input_scale", np.asarray(found.scale, np.float32)), zero

    def _product(
        self, g: GraphBuilder, given: str, name: str, quantized: ir.Value, weight: Array, bias: Array | None
    ) -> ir.Value:
        """given: the name whose range the input has."""
        scale, zero = self._input_range(g, given)
        integers, scales = quantize_columns(weight)
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
        integers, scales = quantize_columns(weight)  # one scale a vocabulary row
        table = g.weight(rows_of(name), np.ascontiguousarray(integers.T))
        scale = g.weight(f"{rows_of(name)}_scale", (scales * np.float32(factor))[:, None])
        rows = g.op("Cast", [g.op("Gather", [table, ids], axis=0)], to=int(ir.DataType.FLOAT))
        value: ir.Value = g.op("Mul", [rows, g.op("Gather", [scale, ids], axis=0)])
        return value

    def cache_dtype(self, attention: str, part: str) -> str:
        if not self._quantized(attention):
            return self.dtype
        return "uint8" if part == "key" and not self.turned(attention) else "int8"

    def row_scales(self, attention: str) -> dict[str, float] | None:
        if not self._quantized(attention):
            return None
        return {part: self.ranges[f"{attention}.{part}"].symmetric_scale for part in ("key", "value")}

    def turned(self, attention: str) -> bool:
        return attention.endswith(".encoder_attn") and self._quantized(attention)

    def cached(self, g: GraphBuilder, attention: str, part: str, x: ir.Value) -> ir.Value:
        if not self._quantized(attention):
            return x
        name, found = f"{attention}.{part}", self.ranges[f"{attention}.{part}"]
        scale, zero = found.symmetric_scale, np.asarray(0, np.int8)
        if self.cache_dtype(attention, part) == "uint8":
            scale, zero = found.scale, np.asarray(found.zero_point, np.uint8)
        factors = g.weight(f"{name}.scale", np.asarray(scale, np.float32)), g.weight(f"{name}.zero_point", zero)
        value: ir.Value = g.op("QuantizeLinear", [x, *factors])
        return value

    def attend(
        self, g: GraphBuilder, attention: str, query: ir.Value, key: ir.Value, value: ir.Value, visible: Visible
    ) -> tuple[ir.Value, ir.Value | None]:
        if not self._quantized(attention):
            return attend_float(g, query, key, value, visible), None
        ranges = {part: self.ranges[f"{attention}.{part}"] for part in ("query", "key", "value")}
        output = self.ranges.get(f"{attention}.out_proj") if self.takes_uint8 else None
        int8 = Int8Attention(g, attention, visible, ranges, output)
        return (int8.source if self.turned(attention) else int8.nodes)(query, key, value)

    def _quantized(self, attention: str) -> bool:
        return all(f"{attention}.{part}" in self.ranges for part in ("query", "key", "value"))
