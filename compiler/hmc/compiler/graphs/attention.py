"""The decoder's attention: over a tree of tokens that beams share, over the source, and over one cache for each row.

Greedy search has no beams, and needs one operator a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.model.layers import AttentionSpec
from hmc.compiler.graph import MICROSOFT
from hmc.compiler.graphs.blocks import Author, joint_name, present_layers
from hmc.compiler.precisions.attention import Visible
from hmc.compiler.precisions.linears import Linears


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
        a = self.a
        g = a.g
        dim = a.arch.head_dim
        attention = a.arch.attention("decoder_self", layer)
        open_heads = a.open_heads("decoder_self", layer)
        visible = self.visible.with_heads(open_heads)
        qkv = a.tree_projections(a.entry(x, attention.norm), attention)
        qkv = g.op("Reshape", [qkv, visible.shape(g, 3 * open_heads, dim)])
        query, *new = g.op("Split", [qkv], outputs=3, axis=2, num_outputs=3)  # [B, k, H, D] each
        kept = []
        for part, value in zip(("key", "value"), new, strict=True):
            dtype = a.linears.cache_dtype(attention, part)
            past = g.input(f"past_{part}_{layer}", dtype, ["B", open_heads, "N", dim])
            present = g.op(
                "ScatterND", [past, self._places_of(open_heads), a.linears.cached(g, attention, part, value)]
            )
            g.output(present, f"present_{part}_{layer}", dtype, ["B", open_heads, "N", dim])
            kept.append(present)
        y, _ = a.attend(attention, query, kept[0], kept[1], visible)
        return a.end_attention(x, y, attention, full_bias=not a.device_form)

    def _places_of(self, open_heads: int) -> ir.Value:
        """`[B, k, open_heads, 3]`: the places to write to in a layer with so many open heads."""
        if open_heads not in self._places:
            g = self.a.g
            most = next(iter(self._places.values()))
            self._places[open_heads] = g.op("Slice", [most, g.ints(0), g.ints(open_heads), g.ints(2)])
        return self._places[open_heads]


class CrossAttention:
    """Cross-attention. A sentence's rows are its query positions, so keys and values are not repeated per beam."""

    def __init__(
        self, a: Author, tokens: ir.Value, lengths: ir.Value, weights: dict[int, ir.Value] | None = None
    ) -> None:
        """tokens: `[R]` or `[B, k]`; lengths: `[B]`. weights: is filled with layer → its attention weights,
        `[B, H_l, k, S]` fp32; None: they are not wanted."""
        self.a = a
        self.weights = weights
        g = a.g
        if tokens.shape is not None and len(tokens.shape) == 2:
            rows = g.op("Shape", [tokens])
        else:
            sentences = g.op("Shape", [lengths])
            beams = g.op("Div", [g.op("Shape", [tokens]), sentences])
            rows = g.op("Concat", [sentences, beams], axis=0)
        self.visible = Visible(rows, 0, a.arch.head_dim, lengths=lengths)

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a = self.a
        g = a.g
        dim = a.arch.head_dim
        attention = a.arch.attention("cross", layer)
        open_heads = a.open_heads("cross", layer)
        visible = self.visible.with_heads(open_heads)
        transposed = a.linears.transposed(attention)
        name, places = ("cross_key_turned", (dim, "S")) if transposed else ("cross_key", ("S", dim))
        key = g.input(f"{name}_{layer}", a.linears.cache_dtype(attention, "key"), ["B", open_heads, *places])
        value = g.input(f"cross_value_{layer}", a.linears.cache_dtype(attention, "value"), ["B", open_heads, "S", dim])
        read = a.entry(x, attention.norm)
        query = g.op("Reshape", [a.queries(read, attention), visible.shape(g, open_heads, dim)])
        y, weights = a.attend(attention, query, key, value, visible)
        if self.weights is not None:
            if weights is None:
                weights = self._weights(a.complete(query, attention), key, visible)
            self.weights[layer] = weights
        return a.end_attention(x, y, attention, full_bias=not a.device_form)

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


class RowAttention:
    """Self-attention over one cache per row. Rows of a batch may differ in length."""

    def __init__(self, a: Author, lengths: ir.Value) -> None:
        """lengths: `[R]` int32, how many tokens each row has read."""
        self.a = a
        self.lengths = lengths
        self.total_length = a.g.input("total_length", "int32", [1])

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a = self.a
        g = a.g
        dim = a.arch.head_dim
        attention = a.arch.attention("decoder_self", layer)
        open_heads = a.open_heads("decoder_self", layer)
        scales = a.linears.row_scales(attention)
        dtype = "int8" if scales else a.linears.dtype
        past = [g.input(f"past_{n}_{layer}", dtype, ["R", open_heads, "T", dim]) for n in ("key", "value")]
        read = a.entry(x, attention.norm)
        qkv = a.linear(read, *attention.inputs)
        y, *present = _attend(
            a, attention, open_heads, [qkv, None, None, *past, self.lengths, self.total_length], scales
        )
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_{name}_{layer}", dtype, ["R", open_heads, "T", dim])
        return a.end_attention(x, y, attention)


class RowCrossAttention:
    """Cross-attention over 8-bit keys and values, for sentences of one row.

    The operator is one for self-attention: it receives the source's keys and values as its past, and no new token.
    """

    def __init__(self, a: Author, lengths: ir.Value) -> None:
        self.a = a
        self.lengths = lengths
        self._shared_lengths: list[ir.Value] = []
        self._empty: dict[int, ir.Value] = {}

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a = self.a
        g = a.g
        dim = a.arch.head_dim
        attention = a.arch.attention("cross", layer)
        open_heads = a.open_heads("cross", layer)
        past = [g.input(f"cross_{n}_{layer}", "int8", ["B", open_heads, "S", dim]) for n in ("key", "value")]
        read = a.entry(x, attention.norm)
        query = a.linear(read, attention.query)
        empty = self._no_new_tokens(open_heads * dim)
        inputs = [query, empty, empty, *past, *self._lengths(past[0])]
        y, *present = _attend(a, attention, open_heads, inputs, a.linears.row_scales(attention))
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_cross_{name}_{layer}", "int8", ["B", open_heads, "S", dim])
        return a.end_attention(x, y, attention)

    def _lengths(self, key: ir.Value) -> list[ir.Value]:
        """Each row's last place, `[B]` int32, and the number of places, `[1]` int32. Written once a graph."""
        if not self._shared_lengths:
            g = self.a.g
            last = g.op("Sub", [self.lengths, g.weight("const.one_int32", np.asarray(1, np.int32))])
            places = g.op("Cast", [g.op("Shape", [key], start=2, end=3)], to=int(ir.DataType.INT32))
            self._shared_lengths = [last, places]
        return self._shared_lengths

    def _no_new_tokens(self, inner: int) -> ir.Value:
        """Keys or values of no token, `[B, 0, inner]`."""
        if inner not in self._empty:
            g = self.a.g
            shape = g.op("Concat", [g.op("Shape", [self.lengths]), g.ints(0, inner)], axis=0)
            self._empty[inner] = g.op("ConstantOfShape", [shape])
        return self._empty[inner]


def _attend(
    a: Author,
    attention: AttentionSpec,
    open_heads: int,
    inputs: Sequence[ir.Value | None],
    scales: dict[str, float] | None,
) -> list[ir.Value]:
    """GroupQueryAttention: query, new keys and values, past ones, lengths → the result and present keys and values.

    scales: of 8-bit keys and values. For these the operator's flash kernel is up to three times slower on few keys than
    its plain kernel, most of all with several threads and where rows differ in length. A sink input selects the plain
    kernel; the sink of -inf changes no result.
    """
    g = a.g
    kept = {}
    query, *rest = inputs
    inputs = [query if a.by_row else g.op("Unsqueeze", [query, g.ints(1)]), *rest]
    if scales:
        sink = g.weight(f"const.no_sink_{open_heads}", np.full(open_heads, -np.inf, np.float32))
        unused: list[ir.Value | None] = [None] * 4
        of = [g.weight(f"{attention.name}.{n}.row_scale", np.array([s], np.float32)) for n, s in scales.items()]
        inputs = [*inputs, *unused, sink, *of]
        kept = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    y, *present = g.op(
        "GroupQueryAttention",
        inputs,
        domain=MICROSOFT,
        outputs=3,
        num_heads=open_heads,
        kv_num_heads=open_heads,
        **kept,
    )
    return [y if a.by_row else g.op("Reshape", [y, g.ints(-1, open_heads * a.arch.head_dim)]), *present]


def states_by_row(arch: Architecture, layout: HeadLayout, tensors: Tensors, linears: Linears) -> bool:
    """Whether the states of a greedy graph can be `[R, 1, d]` from end to end.

    Every attention layer must then have 8-bit keys and values, and every linear layer 8- or 4-bit weights: fp32 ones
    take matrices only.
    """
    for layer in present_layers(arch, "decoder", tensors):
        feed = arch.feed_forward("decoder", layer)
        attentions = list[AttentionSpec]()
        names = [joint_name(*feed.inputs), feed.output.name] if feed.output.weight in tensors else []
        if layout.decoder_self[layer]:
            attentions.append(own := arch.attention("decoder_self", layer))
            names += [joint_name(*own.inputs), own.output.name]
        if layout.cross[layer]:
            attentions.append(cross := arch.attention("cross", layer))
            names += [cross.query.name, cross.output.name]
        if any(linears.row_scales(attention) is None for attention in attentions):
            return False
        if any(linears.range_of(name) is None for name in names):
            return False
    return True
