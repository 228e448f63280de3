"""Parts both graphs are made of: residual + layer norm, feed-forward, embeddings with positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from hmc.artifact.architecture import Architecture, sinusoidal_positions
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.graph import DTYPES, MICROSOFT, GraphBuilder, of_type
from hmc.compiler.linears import Linears

EPSILON = 1e-5
"""Of every layer norm, as in MarianMTModel."""


@dataclass
class Author:
    """One graph being written: builder, weights, layout and the way linears are authored."""

    g: GraphBuilder
    arch: Architecture
    layout: HeadLayout
    tensors: Tensors
    linears: Linears
    by_row: bool = False
    """States are `[N, 1, d]`, as attention by row takes and gives them; else `[N, d]`."""

    def linear(self, name: str, x: ir.Value, *parts: str) -> ir.Value:
        """One linear made of the checkpoint's `parts` (`….q_proj`, …) stacked along their outputs; `name` names it."""
        weight = np.concatenate([self.tensors[f"{p}.weight"] for p in parts])
        bias = np.concatenate([self.tensors[f"{p}.bias"] for p in parts])
        return self.linears.linear(self.g, name, x, weight, bias)

    def several(self, name: str, x: ir.Value, *parts: str) -> Sequence[ir.Value]:
        """The checkpoint's linears `parts`, all of x, by themselves; `name` names their input."""
        found = {p: (self.tensors[f"{p}.weight"], self.tensors[f"{p}.bias"]) for p in parts}
        return self.linears.several(self.g, name, x, found)

    def in_type(self, x: ir.Value) -> ir.Value:
        """An fp32 input in the graph's type."""
        if self.linears.dtype == "float32":
            return x
        return self._value("Cast", [x], to=int(DTYPES[self.linears.dtype]))

    def vector(self, name: str) -> ir.Value:
        """A bias or norm parameter in the graph's type."""
        return self.g.weight(name, of_type(self.tensors[name], self.linears.dtype))

    def add_norm(self, x: ir.Value, y: ir.Value, norm: str) -> ir.Value:
        """LayerNorm(x + y): one fused operator in 16-bit graphs, which are for CUDA, and two on a CPU.

        ONNX Runtime's fused operator sums one element at a time on a CPU; the two were 5 to 9 times faster there.
        """
        scale, bias = self.vector(f"{norm}.weight"), self.vector(f"{norm}.bias")
        if self.linears.dtype != "float32":
            fused: ir.Value = self.g.op(
                "SkipLayerNormalization", [x, y, scale, bias], domain=MICROSOFT, epsilon=EPSILON
            )
            return fused
        return self._norm(self.g.op("Add", [x, y]), scale, bias)

    def _norm(self, x: ir.Value, scale: ir.Value, bias: ir.Value) -> ir.Value:
        value: ir.Value = self.g.op("LayerNormalization", [x, scale, bias], axis=-1, epsilon=EPSILON)
        return value

    def closed_attention(self, x: ir.Value, prefix: str) -> ir.Value:
        """A layer with no open head: LayerNorm(x + W_O's bias) (Voita et al. 2019, footnote 9)."""
        shifted = self.g.op("Add", [x, self.vector(f"{prefix}.out_proj.bias")])
        scale, bias = self.vector(f"{prefix}_layer_norm.weight"), self.vector(f"{prefix}_layer_norm.bias")
        return self._norm(shifted, scale, bias)

    def feed_forward(self, x: ir.Value, prefix: str) -> ir.Value:
        """The feed-forward sub-layer with its residual and norm; without neurons LayerNorm(x + bias of `fc2`)."""
        if f"{prefix}.fc1.weight" not in self.tensors:
            norm = f"{prefix}.final_layer_norm"
            shifted = self.g.op("Add", [x, self.vector(f"{prefix}.fc2.bias")])
            return self._norm(shifted, self.vector(f"{norm}.weight"), self.vector(f"{norm}.bias"))
        inner = self.activation(self.linear(f"{prefix}.fc1", x, f"{prefix}.fc1"))
        return self.add_norm(x, self.linear(f"{prefix}.fc2", inner, f"{prefix}.fc2"), f"{prefix}.final_layer_norm")

    def activation(self, x: ir.Value) -> ir.Value:
        """relu, swish or gelu (exact, by erf)."""
        if self.arch.activation == "relu":
            return self._value("Relu", [x])
        if self.arch.activation == "swish":
            return self._value("Mul", [x, self.g.op("Sigmoid", [x])])
        return self._value("Gelu", [x], approximate="none")

    def embed(self, ids: ir.Value, table: str, pick: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """ids `[…]` → `[…, d]` by the tensor `table`; `pick` takes the rows it needs from the positions
        `[max_positions, d]`."""
        arch = self.arch
        factor = float(np.sqrt(arch.d_model)) if arch.scale_embedding else 1.0
        rows = self.linears.embedding(self.g, table, ids, self.tensors[table], factor)
        positions = of_type(sinusoidal_positions(arch.max_positions, arch.d_model), self.linears.dtype)
        return self._value("Add", [rows, pick(self.g.weight("positions", positions))])

    def heads(self, kind: Any, layer: int) -> int:
        """Open heads of a layer."""
        return len(self.layout[kind][layer])

    def _value(self, kind: str, inputs: list[ir.Value], **attributes: Any) -> ir.Value:
        value: ir.Value = self.g.op(kind, inputs, **attributes)
        return value
