"""How linear layers, and attention over cached keys and values, are written at each precision.

Here are the interface and the floats; 8 and 4 bits have files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir

from hmc.artifact.model.layers import AttentionSpec
from hmc.compiler.derived import Array, DerivedArrays, stack
from hmc.compiler.graph import GraphBuilder, as_type
from hmc.compiler.precisions.attention import Visible, attend_float
from hmc.compiler.precisions.ranges import ActivationRange

Parts = Mapping[str, tuple[Array, Array]]
"""Name → weight `[out, in]` and bias `[out]` of linear layers of one size."""


class Linears(Protocol):
    """Writes y = x Wᵀ + b, and the caches of attention, at one precision.

    A linear layer is named by its prefix, such as `decoder.layers.0.fc1`.
    """

    dtype: str
    """Type of activations in the graph: float32, float16 or bfloat16."""
    derived: DerivedArrays
    """Where stacked, converted and quantised weights are kept for the next graph."""
    quantises_embedding: ClassVar[bool]
    """Whether `embedding` reads rows of integers."""

    def range_of(self, name: str) -> ActivationRange | None:
        """The range to which the input of a linear layer is quantised; None where it stays a float."""

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        """x `[N, in]`, weight `[out, in]`, bias `[out]` → `[N, out]`."""

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        """The results of `linear` for each of `parts`, all of the same input x. `name` names that input's range."""

    def embedding(self, g: GraphBuilder, name: str, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        """ids of any shape; weight `[V, d]`, the checkpoint's tensor `name` → its rows times `factor`, `[…, d]`."""

    def cache_dtype(self, attention: AttentionSpec, part: str) -> str:
        """Type in which an attention layer of the decoder keeps its `key` or `value`."""

    def row_scales(self, attention: AttentionSpec) -> dict[str, float] | None:
        """Scales of `key` and `value` where attention over rows keeps them as int8; None where it keeps floats."""

    def transposed(self, attention: AttentionSpec) -> bool:
        """Whether a cross-attention layer takes its keys as `[B, H, D, S]` and not `[B, H, S, D]`. Attention over rows
        always takes `[B, H, S, D]`."""

    def cached(self, g: GraphBuilder, attention: AttentionSpec, part: str, x: ir.Value) -> ir.Value:
        """Keys or values of any shape, converted to the type in which they are kept."""

    def attend(
        self,
        g: GraphBuilder,
        attention: AttentionSpec,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        visible: Visible,
    ) -> tuple[ir.Value, ir.Value | None]:
        """query `[B, k, H, D]`, kept key and value `[B, H, N, D]` → the input of `out_proj`, `[R, H·D]`, in a type that
        `linear` takes; and the attention weights `[B, H, k, N]`, or None where a fused operator hides them."""


@dataclass
class FloatLinears:
    """fp32 (CPU), fp16 or bf16 (CUDA): one Gemm. The embedding and the output projection share one tensor."""

    dtype: str = "float32"
    derived: DerivedArrays = field(default_factory=DerivedArrays)
    quantises_embedding: ClassVar[bool] = False

    def range_of(self, name: str) -> ActivationRange | None:  # noqa: ARG002 - one interface with Int8Linears
        return None

    def linear(self, g: GraphBuilder, name: str, x: ir.Value, weight: Array, bias: Array | None) -> ir.Value:
        inputs = [x, g.weight(f"{name}.weight", self._as_type(weight))]
        if bias is not None:
            inputs.append(g.weight(f"{name}.bias", self._as_type(bias)))
        value: ir.Value = g.op("Gemm", inputs, transB=1)
        return value

    def several(self, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
        return split_product(self, g, name, x, parts)

    def embedding(self, g: GraphBuilder, name: str, ids: ir.Value, weight: Array, factor: float) -> ir.Value:
        rows = g.op("Gather", [g.weight(name, self._as_type(weight)), ids], axis=0)
        value: ir.Value = g.op("Mul", [rows, g.weight("embedding.factor", as_type(np.asarray(factor), self.dtype))])
        return value

    def cache_dtype(self, attention: AttentionSpec, part: str) -> str:  # noqa: ARG002 - one interface with Int8Linears
        return self.dtype

    def row_scales(self, attention: AttentionSpec) -> dict[str, float] | None:  # noqa: ARG002
        return None

    def transposed(self, attention: AttentionSpec) -> bool:  # noqa: ARG002
        return False

    def cached(self, g: GraphBuilder, attention: AttentionSpec, part: str, x: ir.Value) -> ir.Value:  # noqa: ARG002
        return x

    def attend(
        self,
        g: GraphBuilder,
        attention: AttentionSpec,  # noqa: ARG002
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        visible: Visible,
    ) -> tuple[ir.Value, ir.Value | None]:
        return attend_float(g, query, key, value, visible), None

    def _as_type(self, array: Array) -> Array:
        converted: Any = self.derived.get(as_type, array, dtype=self.dtype)
        return np.asarray(converted)


def split_product(linears: Linears, g: GraphBuilder, name: str, x: ir.Value, parts: Parts) -> Sequence[ir.Value]:
    """`Linears.several` as one product, `[N, out]` of all parts together, which is then split."""
    weights, biases = zip(*parts.values(), strict=True)
    joint = linears.linear(g, name, x, linears.derived.get(stack, *weights), linears.derived.get(stack, *biases))
    values: Sequence[ir.Value] = g.op("Split", [joint], outputs=len(parts), axis=1, num_outputs=len(parts))
    return values
