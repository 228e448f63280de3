"""How a linear layer is authored at each precision. Every linear of both graphs goes through one of these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from hmc.compiler.graph import MICROSOFT, GraphBuilder

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ActivationRange:
    """Static quantisation of an activation to uint8: real = scale · (q - zero_point)."""

    scale: float
    zero_point: int


class Linears(Protocol):
    """Authors y = x Wᵀ + b for one precision."""

    dtype: str
    """Type of activations in the graph: float32 or float16."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        """x `[N, in]`, weight `[out, in]`, bias `[out]` → `[N, out]`."""
        ...

    def embedding(self, g: GraphBuilder, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        """ids of any shape, weight `[V, d]` → rows times `factor`, `[…, d]`."""
        ...


@dataclass
class FloatLinears:
    """fp32 (CPU, CUDA) or fp16 (CUDA): one Gemm. The embedding and the output projection share one tensor."""

    dtype: str = "float32"

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        inputs = [x, g.weight(f"{name}.weight", weight.astype(self.dtype))]
        if bias is not None:
            inputs.append(g.weight(f"{name}.bias", bias.astype(self.dtype)))
        value: ir.Value = g.op("Gemm", inputs, transB=1)
        return value

    def embedding(self, g: GraphBuilder, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        rows = g.op("Gather", [g.weight("shared.weight", weight.astype(self.dtype)), ids], axis=0)
        value: ir.Value = g.op("Mul", [rows, g.weight("embedding.factor", np.asarray(factor, self.dtype))])
        return value


@dataclass
class CalibrationLinears(FloatLinears):
    """fp32, with the input of every linear also a graph output `tap.NAME`, to learn activation ranges from."""

    tapped: dict[str, str] = field(default_factory=dict)
    """Linear name → output name."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        tap = g.op("Identity", [x])
        g.output(tap, f"tap.{name}", self.dtype, ["N", weight.shape[1]])
        self.tapped[name] = f"tap.{name}"
        return super().linear(g, name, x, weight, bias)


def quantize_columns(weight: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """weight `[out, in]` → int8 `[in, out]` and a scale per output column `[out]` (symmetric, absolute maximum)."""
    scale = np.maximum(np.abs(weight).max(axis=1), 1e-8).astype(np.float32) / np.float32(127)
    return np.ascontiguousarray(np.round(weight / scale[:, None]).astype(np.int8).T), scale


@dataclass
class Int8Linears:
    """int8 weights per output column; uint8 activations with static, calibrated scales.

    Static, because a dynamic scale is taken over the whole batch and makes a sentence depend on its neighbours.
    A linear without a range stays in fp32.
    """

    ranges: dict[str, ActivationRange]
    dtype: str = "float32"

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        if name not in self.ranges:
            return FloatLinears().linear(g, name, x, weight, bias)
        activation = self.ranges[name]
        scale = g.weight(f"{name}.input_scale", np.asarray(activation.scale, np.float32))
        zero = g.weight(f"{name}.input_zero_point", np.asarray(activation.zero_point, np.uint8))
        quantized = g.op("QuantizeLinear", [x, scale, zero])
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

    def embedding(self, g: GraphBuilder, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        integers, scales = quantize_columns(weight)  # one scale a vocabulary row
        table = g.weight("embedding.weight", np.ascontiguousarray(integers.T))
        scale = g.weight("embedding.weight_scale", (scales * np.float32(factor))[:, None])
        rows = g.op("Cast", [g.op("Gather", [table, ids], axis=0)], to=int(ir.DataType.FLOAT))
        value: ir.Value = g.op("Mul", [rows, g.op("Gather", [scale, ids], axis=0)])
        return value
