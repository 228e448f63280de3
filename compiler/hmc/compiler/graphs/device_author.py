"""The parts of a graph in device form: the same numbers as `Author` writes, up to rounding, in fewer launches.

What costs time on a device is the number of operations, not their size. ONNX Runtime's CUDA provider adds the bias of a
product in a launch of its own, so biases move to where they cost nothing:

- Those of W_O and of the second feed-forward layer go into SkipLayerNormalization, which takes a bias.
- The bias of W_K adds the same number to all scores of a query, which softmax ignores: it is left out. That of W_V
  reaches the result unchanged, as attention weights sum to 1: W_O b_V joins the bias of W_O. That of W_Q is added by
  MultiHeadAttention. GroupQueryAttention cannot add it, so greedy self-attention keeps all three in the product.
- relu(x + b) = max(x, -b) + b, and the second layer's bias takes W_2 b.
- The factor of embeddings moves into their table, which is also the output projection; the last norm is divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, assert_never

import numpy as np
import onnx_ir as ir

from hmc.artifact.model.architecture import LOGITS_BIAS, TARGET_EMBEDDING
from hmc.artifact.model.layers import EPSILON, AttentionSpec, FeedForwardSpec, LinearSpec, NormSpec
from hmc.compiler.derived import Array
from hmc.compiler.graph import MICROSOFT, as_type
from hmc.compiler.graphs.blocks import Author, joint_name
from hmc.compiler.precisions.attention import Visible, attend_float


class DeviceAuthor(Author):
    """Writes graphs with float weights for a device."""

    device_form: ClassVar[bool] = True

    def end_attention(self, x: ir.Value, y: ir.Value, attention: AttentionSpec, *, full_bias: bool = True) -> ir.Value:
        """See `Author`. full_bias: False after `attend`, because its values have no bias."""
        output = attention.output
        derived = self.linears.derived
        tensors = self.tensors
        bias = tensors[output.bias]
        weight = tensors[output.weight]
        if not full_bias:
            bias = derived.get(plus_product, bias, weight, tensors[attention.value.bias])
        y = self.linears.linear(self.g, output.name, y, weight, None)
        return self._add_norm(x, y, attention.norm, output.bias, bias)

    def source_projections(self, x: ir.Value, attention: AttentionSpec) -> tuple[Sequence[ir.Value], ir.Value | None]:
        """See `Author`. The bias belongs to the queries."""
        joint = self.products(x, *attention.inputs)
        return self.g.op("Split", [joint], outputs=3, axis=1, num_outputs=3), self.query_bias(attention)

    def queries(self, x: ir.Value, attention: AttentionSpec) -> ir.Value:
        """See `Author`: they have no bias yet."""
        return self.products(x, attention.query)

    def complete(self, query: ir.Value, attention: AttentionSpec) -> ir.Value:
        bias = attention.query.bias
        by_head = self.linears.derived.get(by_heads, self.tensors[bias], dim=self.arch.head_dim)
        return self._value("Add", [query, self._weight(bias, by_head)])

    def tree_projections(self, x: ir.Value, attention: AttentionSpec) -> ir.Value:
        """See `Author`: they have no bias yet."""
        return self.products(x, *attention.inputs)

    def products(self, x: ir.Value, *layers: LinearSpec) -> ir.Value:
        """As `linear`, without the biases."""
        weight = self._stacked(*(self.tensors[layer.weight] for layer in layers))
        return self.linears.linear(self.g, joint_name(*layers), x, weight, None)

    def attend(
        self, attention: AttentionSpec, query: ir.Value, key: ir.Value, value: ir.Value, visible: Visible
    ) -> tuple[ir.Value, ir.Value | None]:
        """See `Author`: it adds the bias of W_Q."""
        return attend_float(self.g, query, key, value, visible, self.query_bias(attention)), None

    def query_bias(self, attention: AttentionSpec) -> ir.Value:
        """`[3·H·D]`: the bias of W_Q and zeros, as MultiHeadAttention takes the biases of queries, keys and values."""
        padded = self.linears.derived.get(then_zeros, self.tensors[attention.query.bias])
        return self._weight(f"{attention.name}.query_bias", padded)

    def feed_forward(self, x: ir.Value, feed: FeedForwardSpec) -> ir.Value:
        output = feed.output
        bias = self.tensors[feed.output.bias]
        if output.weight not in self.tensors:
            return self._shifted(x, feed.norm, output.bias)
        (inward,) = feed.inputs
        first = self.tensors[inward.bias]
        second = self.tensors[output.weight]
        inner = self._activated(self.products(self.entry(x, feed.norm), inward), inward.name, first)
        if self.arch.activation == "relu":  # it lacks the bias of fc1
            bias = self.linears.derived.get(plus_product, bias, second, first, dtype=self.linears.dtype)
        y = self.linears.linear(self.g, output.name, inner, second, None)
        return self._add_norm(x, y, feed.norm, output.bias, bias)

    def _activated(self, x: ir.Value, name: str, bias: Array) -> ir.Value:
        """The activation of x + bias; for relu, without the bias that is added after it."""
        if self.arch.activation == "relu":
            return self._value("Max", [x, self._weight(f"{name}.floor", self.linears.derived.get(minus, bias))])
        added = self._weight(f"{name}.bias", bias)
        if self.arch.activation == "gelu":
            return self._value("BiasGelu", [x, added], domain=MICROSOFT)
        if self.arch.activation == "swish":  # QuickGelu is x · sigmoid(alpha · x)
            return self._value("QuickGelu", [self._value("Add", [x, added])], domain=MICROSOFT, alpha=1.0)
        assert_never(self.arch.activation)

    def closed_attention(self, x: ir.Value, attention: AttentionSpec) -> ir.Value:
        return self._shifted(x, attention.norm, attention.output.bias)

    def embed(self, ids: ir.Value, table: str, pick: Callable[[ir.Value], ir.Value]) -> ir.Value:
        rows = self.g.op("Gather", [self._weight(table, self._table(table)), ids], axis=0)
        positions = as_type(self.arch.positions(), self.linears.dtype)
        return self._value("Add", [rows, pick(self.g.weight("positions", positions))])

    def output_projection(self, x: ir.Value) -> ir.Value:
        """See `Author`. x: the last norm, divided by the factor of embeddings where these are the projection too."""
        bias = self.tensors[LOGITS_BIAS]
        layer = self.arch.output_layer
        if self.arch.own_output:
            weight = self.tensors[self.arch.output_projection]
        else:
            weight = self._table(TARGET_EMBEDDING)
            if self._last_norm is None:
                factor = as_type(np.asarray(1 / self._factor), self.linears.dtype)
                x = self._value("Mul", [x, self.g.weight("output.factor", factor)])
        return self.linears.linear(self.g, layer, x, weight, bias if bias.any() else None)

    @property
    def _last_norm(self) -> NormSpec | None:
        """The norm before the output projection; None if there is none."""
        if self.arch.stack_norms or self.arch.pre_norm:
            return self.arch.stack_norm("decoder")
        return self.arch.feed_forward("decoder", self.layers("decoder")[-1]).norm

    @property
    def _factor(self) -> float:
        return float(np.sqrt(self.arch.d_model)) if self.arch.scale_embedding else 1.0

    def _table(self, name: str) -> Array:
        """A table of embeddings times their factor."""
        return self.linears.derived.get(times, self.tensors[name], factor=self._factor)

    def _add_norm(self, x: ir.Value, y: ir.Value, norm: NormSpec, name: str, bias: Array) -> ir.Value:
        """LayerNorm(x + y + bias); x + y + bias where norms come first."""
        if self.arch.pre_norm:
            return self._value("Add", [x, self.g.op("Add", [y, self._weight(name, bias)])])
        return self._skip_norm(x, y, norm, (name, bias))

    def _shifted(self, x: ir.Value, norm: NormSpec, name: str) -> ir.Value:
        """LayerNorm(x + the tensor `name`), x `[R, d]`; no norm where norms come first. The operator broadcasts a row
        to states of rank 3 alone."""
        g = self.g
        if self.arch.pre_norm:
            return self._value("Add", [x, self.vector(name)])
        row = self._weight(f"{name}.row", self.linears.derived.get(as_row, self.tensors[name]))
        y = self._skip_norm(g.op("Unsqueeze", [x, g.ints(1)]), row, norm)
        return self._value("Squeeze", [y, g.ints(1)])

    def _skip_norm(self, x: ir.Value, y: ir.Value, norm: NormSpec, *biases: tuple[str, Array]) -> ir.Value:
        """LayerNorm(x + y), or of x + y + bias; a bias is given by name and values."""
        inputs = [x, y, *self._norm_parameters(norm), *(self._weight(*bias) for bias in biases)]
        return self._value("SkipLayerNormalization", inputs, domain=MICROSOFT, epsilon=EPSILON)

    def _norm_parameters(self, norm: NormSpec) -> list[ir.Value]:
        """Weight and bias of a norm; those of the last one are divided by the factor of embeddings, if these are the
        output projection too."""
        if norm != self._last_norm or self.arch.own_output:
            return super()._norm_parameters(norm)
        factor = 1 / self._factor
        scaled = {name: self.linears.derived.get(times, self.tensors[name], factor=factor) for name in norm.tensors}
        return [self._weight(name, array) for name, array in scaled.items()]

    def _weight(self, name: str, array: Array) -> ir.Value:
        return self.g.weight(name, self.linears.derived.get(as_type, array, dtype=self.linears.dtype))


def plus_product(bias: Array, weight: Array, vector: Array, dtype: str = "float32") -> Array:
    """bias `[out]` + weight `[out, in]` · vector `[in]`, the latter two as rounded to `dtype`, added in fp64."""
    rounded = (as_type(array, dtype).astype(np.float64) for array in (weight, vector))
    product: Array = np.matmul(*rounded)
    return (bias + product).astype(np.float32)


def then_zeros(bias: Array) -> Array:
    """`[n]` → `[3 n]`."""
    return np.concatenate([bias, np.zeros(2 * bias.size, bias.dtype)])


def by_heads(bias: Array, dim: int) -> Array:
    """`[H·D]` → `[H, D]`, a copy."""
    return bias.reshape(-1, dim).copy()


def minus(bias: Array) -> Array:
    """-bias."""
    return -bias


def times(array: Array, factor: float) -> Array:
    """array · factor; the array itself where that changes nothing."""
    return array if factor == 1 else array * array.dtype.type(factor)


def as_row(bias: Array) -> Array:
    """`[n]` → `[1, n]`, a copy."""
    return bias[None].copy()
