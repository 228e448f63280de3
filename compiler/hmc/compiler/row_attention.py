"""Attention of rows that each have keys and values of their own, by one operator a layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from hmc.artifact.architecture import Architecture
from hmc.artifact.heads import HeadLayout
from hmc.compiler.blocks import Author
from hmc.compiler.graph import MICROSOFT
from hmc.compiler.linears import Linears


class RowAttention:
    """Self-attention over per-row caches: rows of different length in one batch."""

    def __init__(self, a: Author, lengths: ir.Value) -> None:
        self.a, self.lengths = a, lengths
        self.total_length = a.g.input("total_length", "int32", [1])

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.self_attn", a.heads("decoder_self", layer)
        scales = a.linears.row_scales(prefix)
        dtype = "int8" if scales else a.linears.dtype
        past = [g.input(f"past_{n}_{layer}", dtype, ["R", heads, "T", dim]) for n in ("key", "value")]
        qkv = a.linear(f"{prefix}.qkv_proj", x, *(f"{prefix}.{p}_proj" for p in "qkv"))
        y, *present = _attend(a, prefix, heads, [qkv, None, None, *past, self.lengths, self.total_length], scales)
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_{name}_{layer}", dtype, ["R", heads, "T", dim])
        return a.add_norm(x, a.linear(f"{prefix}.out_proj", y, f"{prefix}.out_proj"), f"{prefix}_layer_norm")


class RowCrossAttention:
    """Cross-attention of sentences of one row over 8-bit keys and values, to which nothing is added: the operator takes
    them for a past that a new token, of which there is none, would join."""

    def __init__(self, a: Author, lengths: ir.Value) -> None:
        self.a, self.lengths = a, lengths
        self._common: list[ir.Value] = []
        self._none: dict[int, ir.Value] = {}

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.encoder_attn", a.heads("cross", layer)
        past = [g.input(f"cross_{n}_{layer}", "int8", ["B", heads, "S", dim]) for n in ("key", "value")]
        query, none = a.linear(f"{prefix}.q_proj", x, f"{prefix}.q_proj"), self._nothing_new(heads * dim)
        inputs = [query, none, none, *past, *self._lengths(past[0])]
        y, *present = _attend(a, prefix, heads, inputs, a.linears.row_scales(prefix))
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_cross_{name}_{layer}", "int8", ["B", heads, "S", dim])
        return a.add_norm(x, a.linear(f"{prefix}.out_proj", y, f"{prefix}.out_proj"), f"{prefix}_layer_norm")

    def _lengths(self, key: ir.Value) -> list[ir.Value]:
        """`[B]` int32: each row's last place; `[1]` int32: the number of places. Authored once."""
        if not self._common:
            g = self.a.g
            last = g.op("Sub", [self.lengths, g.weight("const.one_int32", np.asarray(1, np.int32))])
            places = g.op("Cast", [g.op("Shape", [key], start=2, end=3)], to=int(ir.DataType.INT32))
            self._common = [last, places]
        return self._common

    def _nothing_new(self, inner: int) -> ir.Value:
        """`[B, 0, inner]`."""
        if inner not in self._none:
            g = self.a.g
            shape = g.op("Concat", [g.op("Shape", [self.lengths]), g.ints(0, inner)], axis=0)
            self._none[inner] = g.op("ConstantOfShape", [shape])
        return self._none[inner]


def _attend(
    a: Author, prefix: str, heads: int, inputs: Sequence[ir.Value | None], scales: dict[str, float] | None
) -> list[ir.Value]:
    """GroupQueryAttention: query, new keys and values, past ones, lengths → what queries read (shaped as they, which is
    as the states are) and present keys and values.

    scales: of 8-bit keys and values. For these the operator's flash kernel is up to three times slower on few keys than
    its plain one, in particular where rows differ in length and with several threads; a sink, here of -inf, which is
    none, selects the plain one.
    """
    g, kept, (query, *others) = a.g, {}, inputs
    inputs = [query if a.by_row else g.op("Unsqueeze", [query, g.ints(1)]), *others]
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


def states_by_row(arch: Architecture, layout: HeadLayout, linears: Linears) -> bool:
    """Whether every attention of a greedy graph is by row, over 8-bit keys and values, and every linear takes such
    states: those of 8 and 4 bits do, fp32 ones do not."""
    for layer in range(arch.decoder_layers):
        attentions, names = [], ["fc1", "fc2"]
        if layout.decoder_self[layer]:
            attentions.append("self_attn")
            names += ["self_attn.qkv_proj", "self_attn.out_proj"]
        if layout.cross[layer]:
            attentions.append("encoder_attn")
            names += ["encoder_attn.q_proj", "encoder_attn.out_proj"]
        prefix = f"decoder.layers.{layer}"
        if any(linears.row_scales(f"{prefix}.{name}") is None for name in attentions):
            return False
        if any(linears.range_of(f"{prefix}.{name}") is None for name in names):
            return False
    return True
