"""encoder.onnx: source ids and lengths → cross keys and values of every decoder layer with open cross heads.

In device form they go to the slots of their sentences, where the caches are.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.compiler.graph import DTYPES, MICROSOFT, Dims, GraphBuilder
from hmc.compiler.graphs.blocks import Author
from hmc.compiler.graphs.device_author import DeviceAuthor
from hmc.compiler.precisions.linears import Linears


def author_encoder(
    arch: Architecture, layout: HeadLayout, tensors: Tensors, linears: Linears, *, device_form: bool = False
) -> GraphBuilder:
    """Inputs: `source` `[B, S]` int32, padded with any token; `source_lengths` `[B]` int32, EOS counted.

    Outputs for each decoder layer l with H_l > 0 open cross heads: `cross_key_l`, `cross_value_l` `[B, H_l, S, D]`, in
    the types in which `linears` keeps them; where it also turns keys, `cross_key_turned_l` `[B, H_l, D, S]`. Padding
    never reaches a real position. With no open cross head at all the graph has no outputs and is not needed.

    device_form: it writes into the caches of a batch (`SlotCaches` describes the additional inputs, and the outputs).
    """
    a = (DeviceAuthor if device_form else Author)(GraphBuilder("encoder"), arch, layout, tensors, linears)
    g = a.g
    d = arch.d_model
    sentences, positions = ("b", "s") if device_form else ("B", "S")  # B and S are then those of the caches
    source = g.input("source", "int32", [sentences, positions])
    lengths = g.input("source_lengths", "int32", [sentences])
    shape = g.op("Shape", [source])
    length = g.op("Shape", [source], start=1, end=2)
    states = a.embed(source, arch.source_embedding, lambda all_: g.op("Slice", [all_, g.ints(0), length, g.ints(0)]))
    x = g.op("Reshape", [states, g.ints(-1, d)])
    for layer in a.layers("encoder"):
        x = _self_attention(a, x, shape, lengths, layer)
        x = a.feed_forward(x, arch.feed_forward("encoder", layer))
    x = a.stack_end(x, "encoder")
    if isinstance(a, DeviceAuthor):
        SlotCaches(a, x, shape).author()
        return g
    for layer in range(arch.decoder_layers):
        _cross_projection(a, x, shape, layer)
    return g


def _self_attention(a: Author, x: ir.Value, shape: ir.Value, lengths: ir.Value, layer: int) -> ir.Value:
    g = a.g
    attention = a.arch.attention("encoder_self", layer)
    open_heads = a.open_heads("encoder_self", layer)
    if not open_heads:
        return a.closed_attention(x, attention)
    inner = open_heads * a.arch.head_dim
    shape = g.op("Concat", [shape, g.ints(inner)], axis=0)
    parts, bias = a.source_projections(a.entry(x, attention.norm), attention)
    query, key, value = (g.op("Reshape", [part, shape]) for part in parts)
    y = g.op("MultiHeadAttention", [query, key, value, bias, lengths], domain=MICROSOFT, num_heads=open_heads)
    return a.end_attention(x, g.op("Reshape", [y, g.ints(-1, inner)]), attention, full_bias=not a.device_form)


def _cross_projection(a: Author, x: ir.Value, shape: ir.Value, layer: int) -> None:
    g = a.g
    attention = a.arch.attention("cross", layer)
    open_heads = a.open_heads("cross", layer)
    dim = a.arch.head_dim
    if not open_heads:
        return
    parts = a.several(x, attention.key, attention.value)
    shape = g.op("Concat", [shape, g.ints(open_heads, dim)], axis=0)
    for part, tensor in zip(("key", "value"), parts, strict=True):
        kept = g.op("Reshape", [a.linears.cached(g, attention, part, tensor), shape])
        dtype = a.linears.cache_dtype(attention, part)
        rows = g.op("Transpose", [kept], perm=[0, 2, 1, 3])
        g.output(rows, f"cross_{part}_{layer}", dtype, ["B", open_heads, "S", dim])
        if part == "key" and a.linears.transposed(attention):
            turned = g.op("Transpose", [kept], perm=[0, 2, 3, 1])
            g.output(turned, f"cross_key_turned_{layer}", dtype, ["B", open_heads, dim, "S"])


class SlotCaches:
    """Writes the cross keys and values of b encoded sentences into caches of B slots.

    It adds these inputs: `slots` `[b, 1]` int64, the slot of each sentence; a slot may be there twice if its sentences
    are the same. And for each decoder layer l with H_l > 0 open cross heads, `cross_key_l` and `cross_value_l`
    `[B, H_l, S, D]`, S at least the length s of the padded sources. Outputs: `next_cross_key_l`, `next_cross_value_l`,
    the same caches with the sentences in their slots, and zeros after their s positions. Bind them to the buffers of
    the inputs: then only these slots are written; else the caches are copied.

    Keys and values have no bias (`DeviceAuthor`).
    """

    def __init__(self, a: DeviceAuthor, states: ir.Value, shape: ir.Value) -> None:
        """states: of the encoder, `[b·s, d]`; shape: `[2]` int64, b and s."""
        self.a = a
        self.states = states
        self.shape = shape
        self._zeros: dict[int, ir.Value] = {}
        self._rows: dict[int, ir.Value] = {}

    def author(self) -> None:
        """Writes all layers."""
        layers = [layer for layer in range(self.a.arch.decoder_layers) if self.a.open_heads("cross", layer)]
        if layers:
            self.slots = self.a.g.input("slots", "int64", ["b", 1])
        for layer in layers:
            self._author(layer)

    def _author(self, layer: int) -> None:
        a = self.a
        g = a.g
        attention = a.arch.attention("cross", layer)
        open_heads = a.open_heads("cross", layer)
        dim = a.arch.head_dim
        dtype = a.linears.dtype
        dims: Dims = ["B", open_heads, "S", dim]
        caches = [g.input(f"cross_{part}_{layer}", dtype, dims) for part in ("key", "value")]
        joint = a.products(self.states, attention.key, attention.value)
        joint = g.op("Reshape", [joint, g.op("Concat", [self.shape, g.ints(2 * open_heads, dim)], axis=0)])
        joint = g.op("Concat", [joint, self._after(open_heads, caches[0])], axis=1)  # [b, S, 2H, D]
        joint = g.op("Transpose", [joint], perm=[0, 2, 1, 3])
        parts = g.op("Split", [joint], outputs=2, axis=1, num_outputs=2)  # [b, H, S, D] each
        if not self._rows:
            most = max(map(len, a.layout.cross))
            self._rows[most] = self._author_rows(most, caches[0])
        rows = self._rows_of(open_heads)
        for name, cache, part in zip(("key", "value"), caches, parts, strict=True):
            written = g.op("ScatterND", [cache, rows, part])
            g.output(written, f"next_cross_{name}_{layer}", dtype, dims)

    def _after(self, open_heads: int, cache: ir.Value) -> ir.Value:
        """Zeros for the positions of a cache after those of the sources, `[b, S - s, 2H, D]`. Shared by layers."""
        if open_heads not in self._zeros:
            g = self.a.g
            count, length = (g.op("Slice", [self.shape, g.ints(n), g.ints(n + 1)]) for n in (0, 1))
            room = g.op("Shape", [cache], start=2, end=3)
            shape = [count, g.op("Sub", [room, length]), g.ints(2 * open_heads, self.a.arch.head_dim)]
            zero = ir.tensor(np.zeros(1, DTYPES[self.a.linears.dtype].numpy()))
            self._zeros[open_heads] = g.op("ConstantOfShape", [g.op("Concat", shape, axis=0)], value=zero)
        return self._zeros[open_heads]

    def _author_rows(self, open_heads: int, cache: ir.Value) -> ir.Value:
        """(slot, head, position) of every row of D values of a cache, `[b, open_heads, S, 3]`.

        With an index of the slot alone, ONNX Runtime's `ScatterND` on CUDA copies a whole slot with one thread.
        """
        g = self.a.g
        end = g.op("Shape", [cache], start=2, end=3)
        zero, one = (g.weight(f"const.scalar_{n}", np.array(n, np.int64)) for n in (0, 1))
        positions = g.op("Range", [zero, g.op("Squeeze", [end]), one])
        columns = [
            g.op("Reshape", [self.slots, g.ints(-1, 1, 1, 1)]),
            g.weight(f"const.heads_{open_heads}", np.arange(open_heads, dtype=np.int64).reshape(1, open_heads, 1, 1)),
            g.op("Reshape", [positions, g.ints(1, 1, -1, 1)]),
        ]
        count = g.op("Shape", [self.slots], start=0, end=1)
        shape = g.op("Concat", [count, g.ints(open_heads), end, g.ints(1)], axis=0)
        rows: ir.Value = g.op("Concat", [g.op("Expand", [column, shape]) for column in columns], axis=-1)
        return rows

    def _rows_of(self, open_heads: int) -> ir.Value:
        """`[b, open_heads, S, 3]`: the rows to write in a layer with so many open heads."""
        if open_heads not in self._rows:
            g = self.a.g
            most = next(iter(self._rows.values()))
            self._rows[open_heads] = g.op("Slice", [most, g.ints(0), g.ints(open_heads), g.ints(1)])
        return self._rows[open_heads]
