"""Attention of rows that do not share keys and values: one operator a layer, for greedy search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hmc.artifact.checkpoint.checkpoint import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.compiler.graph import MICROSOFT
from hmc.compiler.graphs.blocks import Author, present_layers
from hmc.compiler.precisions.linears import Linears


class RowAttention:
    """Self-attention over one cache per row. Rows of a batch may differ in length."""

    def __init__(self, a: Author, lengths: ir.Value) -> None:
        """lengths: `[R]` int32, how many tokens each row has read."""
        self.a, self.lengths = a, lengths
        self.total_length = a.g.input("total_length", "int32", [1])

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.self_attn", a.heads("decoder_self", layer)
        scales = a.linears.row_scales(prefix)
        dtype = "int8" if scales else a.linears.dtype
        past = [g.input(f"past_{n}_{layer}", dtype, ["R", heads, "T", dim]) for n in ("key", "value")]
        read = a.entry(x, f"{prefix}_layer_norm")
        qkv = a.linear(f"{prefix}.qkv_proj", read, *(f"{prefix}.{p}_proj" for p in "qkv"))
        y, *present = _attend(a, prefix, heads, [qkv, None, None, *past, self.lengths, self.total_length], scales)
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_{name}_{layer}", dtype, ["R", heads, "T", dim])
        return a.end_attention(x, y, prefix)


class RowCrossAttention:
    """Cross-attention over 8-bit keys and values, for sentences of one row.

    The operator is one for self-attention: it receives the source's keys and values as its past, and no new token.
    """

    def __init__(self, a: Author, lengths: ir.Value) -> None:
        self.a, self.lengths = a, lengths
        self._shared_lengths: list[ir.Value] = []
        self._empty: dict[int, ir.Value] = {}

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.encoder_attn", a.heads("cross", layer)
        past = [g.input(f"cross_{n}_{layer}", "int8", ["B", heads, "S", dim]) for n in ("key", "value")]
        read = a.entry(x, f"{prefix}_layer_norm")
        query, empty = a.linear(f"{prefix}.q_proj", read, f"{prefix}.q_proj"), self._no_new_tokens(heads * dim)
        inputs = [query, empty, empty, *past, *self._lengths(past[0])]
        y, *present = _attend(a, prefix, heads, inputs, a.linears.row_scales(prefix))
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_cross_{name}_{layer}", "int8", ["B", heads, "S", dim])
        return a.end_attention(x, y, prefix)

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
    a: Author, prefix: str, heads: int, inputs: Sequence[ir.Value | None], scales: dict[str, float] | None
) -> list[ir.Value]:
    """GroupQueryAttention: query, new keys and values, past ones, lengths → the result and present keys and values.

    scales: of 8-bit keys and values. For these the operator's flash kernel is up to three times slower on few keys than
    its plain kernel, most of all with several threads and where rows differ in length. A sink input selects the plain
    kernel; the sink of -inf changes no result.
    """
    g, kept, (query, *rest) = a.g, {}, inputs
    inputs = [query if a.by_row else g.op("Unsqueeze", [query, g.ints(1)]), *rest]
    if scales:
        sink = g.weight(f"const.no_sink_{heads}", np.full(heads, -np.inf, np.float32))
        unused: list[ir.Value | None] = [None] * 4
        of = [g.weight(f"{prefix}.{n}.row_scale", np.array([s], np.float32)) for n, s in scales.items()]
        inputs = [*inputs, *unused, sink, *of]
        kept = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    y, *present = g.op(
        "GroupQueryAttention", inputs, domain=MICROSOFT, outputs=3, num_heads=heads, kv_num_heads=heads, **kept
    )
    return [y if a.by_row else g.op("Reshape", [y, g.ints(-1, heads * a.arch.head_dim)]), *present]


def states_by_row(arch: Architecture, layout: HeadLayout, tensors: Tensors, linears: Linears) -> bool:
    """Whether the states of a greedy graph can be `[R, 1, d]` from end to end.

    Every attention layer must then have 8-bit keys and values, and every linear layer 8- or 4-bit weights: fp32 ones
    take matrices only.
    """
    for layer in present_layers(arch, "decoder", tensors):
        prefix = f"decoder.layers.{layer}"
        attentions, names = [], ["fc1", "fc2"] if f"{prefix}.fc1.weight" in tensors else []
        if layout.decoder_self[layer]:
            attentions.append("self_attn")
            names += ["self_attn.qkv_proj", "self_attn.out_proj"]
        if layout.cross[layer]:
            attentions.append("encoder_attn")
            names += ["encoder_attn.q_proj", "encoder_attn.out_proj"]
        if any(linears.row_scales(f"{prefix}.{name}") is None for name in attentions):
            return False
        if any(linears.range_of(f"{prefix}.{name}") is None for name in names):
            return False
    return True
