"""Cross-attention of a sentence's rows over its source positions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.compiler.graphs.blocks import Author
from hmc.compiler.precisions.attention import Visible


class CrossAttention:
    """Cross-attention. A sentence's rows are its query positions, so keys and values are not repeated per beam."""

    def __init__(
        self, a: Author, tokens: ir.Value, lengths: ir.Value, weights: dict[int, ir.Value] | None = None
    ) -> None:
        """tokens: `[R]` or `[B, k]`; lengths: `[B]`. weights: is filled with layer → its attention weights,
        `[B, H_l, k, S]` fp32; None: they are not wanted."""
        self.a, self.weights, g = a, weights, a.g
        if tokens.shape is not None and len(tokens.shape) == 2:
            rows = g.op("Shape", [tokens])
        else:
            sentences = g.op("Shape", [lengths])
            beams = g.op("Div", [g.op("Shape", [tokens]), sentences])
            rows = g.op("Concat", [sentences, beams], axis=0)
        self.visible = Visible(rows, 0, a.arch.head_dim, lengths=lengths)

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.encoder_attn", a.heads("cross", layer)
        visible = self.visible.of(heads)
        transposed = a.linears.transposed(prefix)
        name, places = ("cross_key_turned", (dim, "S")) if transposed else ("cross_key", ("S", dim))
        key = g.input(f"{name}_{layer}", a.linears.cache_dtype(prefix, "key"), ["B", heads, *places])
        value = g.input(f"cross_value_{layer}", a.linears.cache_dtype(prefix, "value"), ["B", heads, "S", dim])
        read = a.entry(x, f"{prefix}_layer_norm")
        query = g.op("Reshape", [a.queries(read, prefix), visible.shape(g, heads, dim)])
        y, weights = a.attend(prefix, query, key, value, visible)
        if self.weights is not None:
            self.weights[layer] = self._weights(a.complete(query, prefix), key, visible) if weights is None else weights
        return a.end_attention(x, y, prefix, full_bias=not a.device_form)

    def _weights(self, query: ir.Value, key: ir.Value, visible: Visible) -> ir.Value:
        """query `[B, k, H, D]`, key `[B, H, S, D]` → softmax(q kᵀ / √D) over the source without padding, `[B, H, k, S]`
        fp32. The fused operator computes it too, but does not return it."""
        g = self.a.g
        if self.a.linears.dtype != "float32":
            query, key = (g.op("Cast", [v], to=int(ir.DataType.FLOAT)) for v in (query, key))
        query = g.op("Transpose", [query], perm=[0, 2, 1, 3])
        products = g.op("MatMul", [query, g.op("Transpose", [key], perm=[0, 1, 3, 2])])
        scaled = g.op("Mul", [products, g.weight("const.scale", np.asarray(visible.dim**-0.5, np.float32))])
        value: ir.Value = g.op("Softmax", [visible.masked(g, scaled)], axis=-1)
        return value
