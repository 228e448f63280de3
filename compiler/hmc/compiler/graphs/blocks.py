"""The parts that encoder and decoder share: residual + layer norm, feed-forward, embeddings with positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, assert_never

import numpy as np
import onnx_ir as ir

from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import LOGITS_BIAS, Architecture
from hmc.artifact.model.ffn import Stack
from hmc.artifact.model.heads import AttentionKind, HeadLayout
from hmc.artifact.model.layers import EPSILON, AttentionSpec, FeedForwardSpec, LinearSpec, NormSpec
from hmc.compiler.derived import Array, stack
from hmc.compiler.graph import DTYPES, GraphBuilder, as_type
from hmc.compiler.precisions.attention import Visible
from hmc.compiler.precisions.linears import Linears


def present_layers(arch: Architecture, stack: Stack, tensors: Tensors) -> list[int]:
    """Numbers of the layers that were not removed, which are the layers with tensors."""
    return [n for n in range(arch.depth(stack)) if arch.feed_forward(stack, n).output.bias in tensors]


def joint_name(*layers: LinearSpec) -> str:
    """Name of linear layers that are one product: `….qkv_proj` for `….q_proj`, `….k_proj` and `….v_proj`."""
    names = [layer.name.rpartition(".") for layer in layers]
    return layers[0].name if len(layers) == 1 else f"{names[0][0]}.{''.join(last[0] for *_, last in names)}_proj"


@dataclass
class Author:
    """One graph being written: builder, weights, head layout and precision."""

    g: GraphBuilder
    arch: Architecture
    layout: HeadLayout
    tensors: Tensors
    linears: Linears
    by_row: bool = False
    """Whether states are `[R, 1, d]`, the shape that attention over rows takes and returns; else they are `[R, d]`."""
    device_form: ClassVar[bool] = False
    """Whether the graph is for a device: few launches, and caches that are written where they are (`DeviceAuthor`)."""

    def linear(self, x: ir.Value, *layers: LinearSpec) -> ir.Value:
        """The checkpoint's linear layers of x as one, stacked along their outputs."""
        weight = self._stacked(*(self.tensors[layer.weight] for layer in layers))
        bias = self._stacked(*(self.tensors[layer.bias] for layer in layers))
        return self.linears.linear(self.g, joint_name(*layers), x, weight, bias)

    def several(self, x: ir.Value, *layers: LinearSpec) -> Sequence[ir.Value]:
        """The results of the checkpoint's linear layers, each of x, which has one range."""
        parameters = {layer.name: (self.tensors[layer.weight], self.tensors[layer.bias]) for layer in layers}
        return self.linears.several(self.g, joint_name(*layers), x, parameters)

    def in_type(self, x: ir.Value) -> ir.Value:
        """An fp32 graph input, converted to the graph's type."""
        if self.linears.dtype == "float32":
            return x
        return self._value("Cast", [x], to=int(DTYPES[self.linears.dtype]))

    def vector(self, name: str) -> ir.Value:
        """A bias or norm parameter, converted to the graph's type."""
        return self.g.weight(name, as_type(self.tensors[name], self.linears.dtype))

    def entry(self, x: ir.Value, norm: NormSpec) -> ir.Value:
        """The input of a sub-layer from the states x: LayerNorm(x) if norms come first, else x itself."""
        return self._norm(x, norm) if self.arch.pre_norm else x

    def stack_end(self, x: ir.Value, stack: Stack) -> ir.Value:
        """The states after the last layer of a stack: with the stack's own norm, if it has one."""
        norm = self.arch.stack_norm(stack)
        return self._norm(x, norm) if norm else x

    def add_norm(self, x: ir.Value, y: ir.Value, norm: NormSpec) -> ir.Value:
        """LayerNorm(x + y) in two operators; x + y where norms come first.

        On a CPU, ONNX Runtime's fused operator adds one element at a time; the two operators were 5 to 9 times faster.
        """
        if self.arch.pre_norm:
            return self._value("Add", [x, y])
        return self._norm(self.g.op("Add", [x, y]), norm)

    def _norm_parameters(self, norm: NormSpec) -> list[ir.Value]:
        """Weight and bias of a norm."""
        return [self.vector(name) for name in norm.tensors]

    def _norm(self, x: ir.Value, norm: NormSpec) -> ir.Value:
        """LayerNorm(x)."""
        return self._value("LayerNormalization", [x, *self._norm_parameters(norm)], axis=-1, epsilon=EPSILON)

    def end_attention(self, x: ir.Value, y: ir.Value, attention: AttentionSpec, *, full_bias: bool = True) -> ir.Value:
        """The states after attention: LayerNorm(x + W_O y), y the heads' results; no norm where norms come first.

        full_bias: their values had the bias of W_V (`DeviceAuthor`).
        """
        assert full_bias
        return self.add_norm(x, self.linear(y, attention.output), attention.norm)

    def source_projections(self, x: ir.Value, attention: AttentionSpec) -> tuple[Sequence[ir.Value], ir.Value | None]:
        """Queries, keys and values of the encoder's attention, `[N, H·D]` each, and the bias that the operator adds."""
        return self.several(x, *attention.inputs), None

    def queries(self, x: ir.Value, attention: AttentionSpec) -> ir.Value:
        """The queries of cross-attention, `[R, H·D]`, without the bias that `attend` adds."""
        return self.linear(x, attention.query)

    def complete(self, query: ir.Value, attention: AttentionSpec) -> ir.Value:  # noqa: ARG002 - DeviceAuthor needs it
        """Queries `[…, H, D]` with the bias that `attend` adds."""
        return query

    def tree_projections(self, x: ir.Value, attention: AttentionSpec) -> ir.Value:
        """Queries, keys and values of the decoder's attention over a tree, `[R, 3·H·D]`, without what `attend` adds."""
        return self.linear(x, *attention.inputs)

    def attend(
        self, attention: AttentionSpec, query: ir.Value, key: ir.Value, value: ir.Value, visible: Visible
    ) -> tuple[ir.Value, ir.Value | None]:
        """As `Linears.attend`."""
        return self.linears.attend(self.g, attention, query, key, value, visible)

    def output_projection(self, x: ir.Value) -> ir.Value:
        """Logits `[R, V]` in the graph's type."""
        tensors = self.tensors
        arch = self.arch
        weight = tensors[arch.output_projection]
        bias = tensors[LOGITS_BIAS]
        return self.linears.linear(self.g, arch.output_layer, x, weight, bias)

    def closed_attention(self, x: ir.Value, attention: AttentionSpec) -> ir.Value:
        """A layer with no open head: LayerNorm(x + W_O's bias) (Voita et al. 2019, footnote 9)."""
        return self.add_norm(x, self.vector(attention.output.bias), attention.norm)

    def feed_forward(self, x: ir.Value, feed: FeedForwardSpec) -> ir.Value:
        """The feed-forward sub-layer with residual and norm; without neurons it is LayerNorm(x + bias of `fc2`)."""
        if feed.output.weight not in self.tensors:
            return self.add_norm(x, self.vector(feed.output.bias), feed.norm)
        inner = self.activation(self.linear(self.entry(x, feed.norm), *feed.inputs))
        return self.add_norm(x, self.linear(inner, feed.output), feed.norm)

    def activation(self, x: ir.Value) -> ir.Value:
        """relu, swish or gelu (exact, by erf)."""
        if self.arch.activation == "relu":
            return self._value("Relu", [x])
        if self.arch.activation == "swish":
            return self._value("Mul", [x, self.g.op("Sigmoid", [x])])
        if self.arch.activation == "gelu":
            return self._value("Gelu", [x], approximate="none")
        assert_never(self.arch.activation)

    def embed(self, ids: ir.Value, table: str, pick: Callable[[ir.Value], ir.Value]) -> ir.Value:
        """ids `[…]` → their rows of the tensor `table` plus positions, `[…, d]`.

        pick: takes the needed rows from the encodings of all positions, `[max_positions, d]`.
        """
        arch = self.arch
        factor = float(np.sqrt(arch.d_model)) if arch.scale_embedding else 1.0
        rows = self.linears.embedding(self.g, table, ids, self.tensors[table], factor)
        positions = as_type(arch.positions(), self.linears.dtype)
        return self._value("Add", [rows, pick(self.g.weight("positions", positions))])

    def layers(self, stack: Stack) -> list[int]:
        """Numbers of the layers that the graph has; the other layers were removed, and return their input."""
        return present_layers(self.arch, stack, self.tensors)

    def open_heads(self, kind: AttentionKind, layer: int) -> int:
        """Number of open heads of a layer."""
        return len(self.layout[kind][layer])

    def _stacked(self, *arrays: Array) -> Array:
        return self.linears.derived.get(stack, *arrays)

    def _value(self, kind: str, inputs: list[ir.Value], **attributes: Any) -> ir.Value:
        value: ir.Value = self.g.op(kind, inputs, **attributes)
        return value
