"""decoder.onnx: one decoding step, from last tokens and caches to top-k log-probabilities and updated caches; and its
variants, which do more, or less and that faster, and are opened by the first request that needs them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.architecture import Architecture
from hmc.artifact.bundle import Variant
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.attends import Visible
from hmc.compiler.blocks import Author
from hmc.compiler.decoder_choices import best_candidates, draw_tokens, penalise_repetition
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.linears import Linears
from hmc.compiler.shortlist_graph import Shortlist


def author_decoder(
    arch: Architecture,
    layout: HeadLayout,
    tensors: Tensors,
    linears: Linears,
    *,
    gather_parents: bool = False,
    variant: Variant | None = None,
    listed: bool = False,
) -> GraphBuilder:
    """R rows; a sentence's beams are k = R / B neighbouring rows.

    listed: candidates come from vocabulary shortlists (see `Shortlist` for its inputs).

    Inputs: `tokens` `[R]` int32; `lengths` `[R]` int32, the tokens that a row has read before; `candidates` `[1]`
    int64, K; `wanted` `[R]` int64, a token, or with a shortlist a place in the row's list; for each layer l with open
    cross heads `cross_key_l`, `cross_value_l` as the encoder gives them, and `source_lengths` `[B]` int32; for each
    layer l with open self-attention heads `past_key_l`, `past_value_l`, in one of two forms; the types of all caches
    are those in which `linears` keeps them:

    - Nodes, on a CPU: `[B, H_l, N, D]`, the N places of a sentence hold the keys and values of tokens that any of its
      rows wrote, in any order. `node_places` `[B, k, H, 3]` int64, H the most heads of a layer, is (sentence, head,
      place) where the rows' next keys and values go; `node_bias` `[B, 1, k, N]` fp32 is 0 where a row attends to a
      place, its own new one included, and -inf elsewhere.
    - Rows, with gather_parents or for "greedy": `[P, H_l, T, D]`, position t at place t, and `total_length` `[1]`
      int32, the greatest length plus one. With gather_parents they are in the type of activations, and `parents` `[R]`
      int64 is the row of the past that each row continues.

    Outputs: `scores` `[R, K]` fp32 log-probabilities, best first; `ids` `[R, K]` int64; `wanted_scores` `[R]` fp32, of
    the wanted tokens; `present_key_l`, `present_value_l` shaped as the past, and without gather_parents they may be the
    same buffers, written in place.

    "greedy" is for sentences of one row each (k = 1): one operator does what nodes take a dozen for. "attention" and
    "sampling" penalise repetition (`penalise_repetition`). "attention" also returns `attention` `[B, H, k, S]` fp32:
    what the rows attend to in the source, for all H open cross heads, layer by layer. "sampling" also draws a token
    (`draw_tokens`).
    """
    a = Author(GraphBuilder("decoder"), arch, layout, tensors, linears)
    g = a.g
    tokens, lengths = g.input("tokens", "int32", ["R"]), g.input("lengths", "int32", ["R"])
    own: _RowAttention | _NodeAttention | None = None
    if any(layout.decoder_self):
        by_row = gather_parents or variant == "greedy"
        own = _RowAttention(a, lengths, gather_parents=gather_parents) if by_row else _NodeAttention(a)
    cross = _CrossAttention(a, tokens, keep_weights=variant == "attention") if any(layout.cross) else None
    x = a.embed(tokens, lambda table: g.op("Gather", [table, lengths], axis=0))  # [R, d]
    for layer in range(arch.decoder_layers):
        prefix = f"decoder.layers.{layer}"
        if a.heads("decoder_self", layer) and own:
            x = own.author(x, layer)
        else:
            x = a.closed_attention(x, f"{prefix}.self_attn")
        if a.heads("cross", layer) and cross:
            x = cross.author(x, layer)
        else:
            x = a.closed_attention(x, f"{prefix}.encoder_attn")
        x = a.feed_forward(x, prefix)
    shortlist = Shortlist(g) if listed else None
    if shortlist:
        logits = shortlist.logits(x, arch.d_model, linears)
    else:
        logits = linears.linear(g, "shared", x, tensors["shared.weight"], tensors["final_logits_bias"])
    if linears.dtype != "float32":
        logits = g.op("Cast", [logits], to=int(ir.DataType.FLOAT))
    if variant in ("attention", "sampling"):
        logits = penalise_repetition(g, logits)
    log_probs = g.op("LogSoftmax", [logits], axis=-1)
    best = best_candidates(g, log_probs, shortlist)
    if variant == "sampling":
        draw_tokens(g, log_probs, best, shortlist)
    if cross and cross.weights:
        heads = sum(map(len, layout.cross))
        g.output(g.op("Concat", cross.weights, axis=1), "attention", "float32", ["B", heads, "k", "S"])
    return g


class _NodeAttention:
    """Self-attention over a tree: a sentence's rows are its query positions and share the nodes they have in common, so
    that nothing is copied when beams change parents, and 4 beams make one product of 4 rows."""

    def __init__(self, a: Author) -> None:
        self.a = a
        most = max(map(len, a.layout.decoder_self))
        places = a.g.input("node_places", "int64", ["B", "k", most, 3])
        bias = a.g.input("node_bias", "float32", ["B", 1, "k", "N"])
        self.visible = Visible(a.g.op("Shape", [places], start=0, end=2), most, a.arch.head_dim, bias=bias)
        self._places: dict[int, ir.Value] = {most: places}

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.self_attn", a.heads("decoder_self", layer)
        visible = self.visible.of(heads)
        qkv = a.linear(f"{prefix}.qkv_proj", x, *(f"{prefix}.{p}_proj" for p in "qkv"))
        qkv = g.op("Reshape", [qkv, visible.shape(g, 3 * heads, dim)])
        query, *new = g.op("Split", [qkv], outputs=3, axis=2, num_outputs=3)  # [B, k, H, D] each
        held = []
        for part, each in zip(("key", "value"), new, strict=True):
            dtype = a.linears.cache_dtype(prefix, part)
            past = g.input(f"past_{part}_{layer}", dtype, ["B", heads, "N", dim])
            present = g.op("ScatterND", [past, self._of(heads), a.linears.cached(g, prefix, part, each)])
            g.output(present, f"present_{part}_{layer}", dtype, ["B", heads, "N", dim])
            held.append(present)
        y, _ = a.linears.attend(g, prefix, query, held[0], held[1], visible)
        return a.add_norm(x, a.linear(f"{prefix}.out_proj", y, f"{prefix}.out_proj"), f"{prefix}_layer_norm")

    def _of(self, heads: int) -> ir.Value:
        """`[B, k, heads, 3]`: the places in a layer of so many heads."""
        if heads not in self._places:
            g, most = self.a.g, next(iter(self._places.values()))
            self._places[heads] = g.op("Slice", [most, g.ints(0), g.ints(heads), g.ints(2)])
        return self._places[heads]


class _RowAttention:
    """Self-attention over per-row caches with GroupQueryAttention: rows of different length in one batch."""

    def __init__(self, a: Author, lengths: ir.Value, *, gather_parents: bool) -> None:
        self.a, self.lengths = a, lengths
        self.total_length = a.g.input("total_length", "int32", [1])
        self.parents = a.g.input("parents", "int64", ["R"]) if gather_parents else None

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.self_attn", a.heads("decoder_self", layer)
        scales = None if self.parents else a.linears.row_scales(prefix)
        dtype = "int8" if scales else a.linears.dtype
        past = [g.input(f"past_{n}_{layer}", dtype, ["P", heads, "T", dim]) for n in ("key", "value")]
        if self.parents is not None:
            past = [g.op("Gather", [value, self.parents], axis=0) for value in past]
        qkv = a.linear(f"{prefix}.qkv_proj", x, *(f"{prefix}.{p}_proj" for p in "qkv"))
        qkv = g.op("Unsqueeze", [qkv, g.ints(1)])  # [R, 1, 3·H·D]
        inputs, kept = [qkv, None, None, *past, self.lengths, self.total_length], {}
        if scales:
            inputs += [None] * 5  # of other uses of the operator
            inputs += [g.weight(f"{prefix}.{n}.row_scale", np.array([s], np.float32)) for n, s in scales.items()]
            kept = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
        y, *present = g.op(
            "GroupQueryAttention", inputs, domain=MICROSOFT, outputs=3, num_heads=heads, kv_num_heads=heads, **kept
        )
        for name, tensor in zip(("key", "value"), present, strict=True):
            g.output(tensor, f"present_{name}_{layer}", dtype, ["R", heads, "T", dim])
        y = a.linear(f"{prefix}.out_proj", g.op("Reshape", [y, g.ints(-1, heads * dim)]), f"{prefix}.out_proj")
        return a.add_norm(x, y, f"{prefix}_layer_norm")


class _CrossAttention:
    """Cross-attention where a sentence's beams are its query positions: keys and values are never repeated per beam."""

    def __init__(self, a: Author, tokens: ir.Value, *, keep_weights: bool) -> None:
        self.a, self.keep_weights = a, keep_weights
        g, lengths = a.g, a.g.input("source_lengths", "int32", ["B"])
        sentences = g.op("Shape", [lengths])
        beams = g.op("Div", [g.op("Shape", [tokens]), sentences])
        self.visible = Visible(g.op("Concat", [sentences, beams], axis=0), 0, a.arch.head_dim, lengths=lengths)
        self.weights: list[ir.Value] = []
        """With keep_weights, of each layer authored so far: `[B, H_l, k, S]` fp32."""

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.encoder_attn", a.heads("cross", layer)
        visible = self.visible.of(heads)
        turned = a.linears.turned(prefix)
        places = {"key": (dim, "S") if turned else ("S", dim), "value": ("S", dim)}
        key, value = (
            g.input(f"cross_{part}_{layer}", a.linears.cache_dtype(prefix, part), ["B", heads, *places[part]])
            for part in ("key", "value")
        )
        query = a.linear(f"{prefix}.q_proj", x, f"{prefix}.q_proj")
        query = g.op("Reshape", [query, visible.shape(g, heads, dim)])
        y, weights = a.linears.attend(g, prefix, query, key, value, visible)
        if self.keep_weights:
            self.weights.append(self._weights(query, key, visible) if weights is None else weights)
        return a.add_norm(x, a.linear(f"{prefix}.out_proj", y, f"{prefix}.out_proj"), f"{prefix}_layer_norm")

    def _weights(self, query: ir.Value, key: ir.Value, visible: Visible) -> ir.Value:
        """softmax(q kᵀ / √D) over real source positions, `[B, H, k, S]`, which the fused operator does not return.
        query `[B, k, H, D]`, key `[B, H, S, D]`."""
        g = self.a.g
        if self.a.linears.dtype != "float32":
            query, key = (g.op("Cast", [v], to=int(ir.DataType.FLOAT)) for v in (query, key))
        query = g.op("Transpose", [query], perm=[0, 2, 1, 3])
        products = g.op("MatMul", [query, g.op("Transpose", [key], perm=[0, 1, 3, 2])])
        scaled = g.op("Mul", [products, g.weight("const.scale", np.asarray(visible.dim**-0.5, np.float32))])
        value: ir.Value = g.op("Softmax", [visible.added(g, scaled)], axis=-1)
        return value
