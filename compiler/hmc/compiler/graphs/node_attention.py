"""Self-attention of beams over a tree of tokens that they share."""

from __future__ import annotations

import onnx_ir as ir

from hmc.compiler.graphs.blocks import Author
from hmc.compiler.precisions.attention import Visible


class NodeAttention:
    """Self-attention of a sentence's rows over one tree of tokens, whose nodes hold the keys and values.

    Rows with a common prefix share its nodes, so nothing is copied when beams change their parents. The rows are query
    positions, so the scores of 4 beams are one product.
    """

    def __init__(self, a: Author, places: ir.Value | None = None, bias: ir.Value | None = None) -> None:
        """places: `[B, k, H, 3]` int64, (sentence, head, place) of each row's new key and value, H the most heads of
        any layer; bias: `[B, 1, k, N]` in the graph's type. None: they are the inputs `node_places` and `node_bias`.
        """
        self.a = a
        most = max(map(len, a.layout.decoder_self))
        places = places or a.g.input("node_places", "int64", ["B", "k", most, 3])
        bias = bias or a.in_type(a.g.input("node_bias", "float32", ["B", 1, "k", "N"]))
        self.visible = Visible(a.g.op("Shape", [places], start=0, end=2), most, a.arch.head_dim, bias=bias)
        self._places: dict[int, ir.Value] = {most: places}

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.self_attn", a.heads("decoder_self", layer)
        visible = self.visible.of(heads)
        qkv = a.tree_projections(a.entry(x, f"{prefix}_layer_norm"), prefix)
        qkv = g.op("Reshape", [qkv, visible.shape(g, 3 * heads, dim)])
        query, *new = g.op("Split", [qkv], outputs=3, axis=2, num_outputs=3)  # [B, k, H, D] each
        kept = []
        for part, each in zip(("key", "value"), new, strict=True):
            dtype = a.linears.cache_dtype(prefix, part)
            past = g.input(f"past_{part}_{layer}", dtype, ["B", heads, "N", dim])
            present = g.op("ScatterND", [past, self._places_of(heads), a.linears.cached(g, prefix, part, each)])
            g.output(present, f"present_{part}_{layer}", dtype, ["B", heads, "N", dim])
            kept.append(present)
        y, _ = a.attend(prefix, query, kept[0], kept[1], visible)
        return a.end_attention(x, y, prefix, full_bias=not a.device_form)

    def _places_of(self, heads: int) -> ir.Value:
        """`[B, k, heads, 3]`: the places to write to in a layer with `heads` heads."""
        if heads not in self._places:
            g, most = self.a.g, next(iter(self._places.values()))
            self._places[heads] = g.op("Slice", [most, g.ints(0), g.ints(heads), g.ints(2)])
        return self._places[heads]
