"""decoder.onnx: one decoding step, from last tokens and caches to top-k log-probabilities and updated caches; and its
variants, which do more, or less and that faster, and are opened by the first request that needs them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.architecture import TARGET_EMBEDDING, Architecture
from hmc.artifact.bundle import Variant
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.attends import Visible
from hmc.compiler.blocks import Author
from hmc.compiler.decoder_choices import best_candidates, draw_tokens, penalise_repetition
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.linears import Linears
from hmc.compiler.row_attention import RowAttention, RowCrossAttention, states_by_row
from hmc.compiler.shortlist_graph import Shortlist


def author_decoder(
    arch: Architecture,
    layout: HeadLayout,
    tensors: Tensors,
    linears: Linears,
    *,
    variant: Variant | None = None,
    listed: bool = False,
) -> GraphBuilder:
    """R rows; a sentence's beams are k = R / B neighbouring rows.

    listed: candidates come from vocabulary shortlists (see `Shortlist` for its inputs).

    Inputs: `tokens` `[R]` int32; `lengths` `[R]` int32, the tokens that a row has read before; `candidates` `[1]`
    int64, K; `wanted` `[R]` int64, a token, or with a shortlist a place in the row's list; for each layer l with open
    cross heads `cross_key_l` or `cross_key_turned_l`, and `cross_value_l`, as the encoder gives them, and
    `source_lengths` `[B]` int32; for each layer l with open self-attention heads `past_key_l`, `past_value_l`, in one
    of two forms; the types of all caches are those in which `linears` keeps them:

    - Nodes: `[B, H_l, N, D]`, the N places of a sentence hold the keys and values of tokens that any of its
      rows wrote, in any order. `node_places` `[B, k, H, 3]` int64, H the most heads of a layer, is (sentence, head,
      place) where the rows' next keys and values go; `node_bias` `[B, 1, k, N]` fp32 is 0 where a row attends to a
      place, its own new one included, and -inf elsewhere.
    - Rows, for "greedy": `[R, H_l, T, D]`, position t at place t, and `total_length` `[1]` int32, at least the greatest
      length plus one and at most T.

    Outputs: `scores` `[R, K]` fp32 log-probabilities, best first; `ids` `[R, K]` int64; `wanted_scores` `[R]` fp32, of
    the wanted tokens; `present_key_l`, `present_value_l` shaped as the past, which may be the same buffers,
    written in place; for "greedy" with 8-bit caches also `present_cross_key_l`, `present_cross_value_l`,
    which should be the buffers of the inputs: nothing is written then, and else they are copied.

    "greedy" is for sentences of one row each (k = 1): one operator does what nodes take a dozen for. "attention" and
    "sampling" penalise repetition (`penalise_repetition`). "attention" also returns `attention` `[B, H, k, S]` fp32:
    what the rows attend to in the source, for all H open cross heads, layer by layer. "sampling" also draws a token
    (`draw_tokens`).
    """
    by_row = variant == "greedy" and states_by_row(arch, layout, linears)
    a = Author(GraphBuilder("decoder"), arch, layout, tensors, linears, by_row)
    g = a.g
    tokens, lengths = g.input("tokens", "int32", ["R"]), g.input("lengths", "int32", ["R"])
    own: RowAttention | _NodeAttention | None = None
    if any(layout.decoder_self):
        own = RowAttention(a, lengths) if variant == "greedy" else _NodeAttention(a)
    weights: dict[int, ir.Value] = {}
    cross = _cross_attentions(a, tokens, variant, weights)
    last, places = (g.op("Unsqueeze", [v, g.ints(1)]) if by_row else v for v in (tokens, lengths))
    x = a.embed(last, TARGET_EMBEDDING, lambda all_: g.op("Gather", [all_, places], axis=0))
    for layer in range(arch.decoder_layers):
        prefix = f"decoder.layers.{layer}"
        if a.heads("decoder_self", layer) and own:
            x = own.author(x, layer)
        else:
            x = a.closed_attention(x, f"{prefix}.self_attn")
        x = cross[layer].author(x, layer) if layer in cross else a.closed_attention(x, f"{prefix}.encoder_attn")
        x = a.feed_forward(x, prefix)
    x = g.op("Squeeze", [x, g.ints(1)]) if by_row else x
    shortlist = Shortlist(g) if listed else None
    if shortlist:
        logits = shortlist.logits(x, arch.d_model, linears)
    else:
        logits = linears.linear(g, "shared", x, tensors[TARGET_EMBEDDING], tensors["final_logits_bias"])
    if linears.dtype != "float32":
        logits = g.op("Cast", [logits], to=int(ir.DataType.FLOAT))
    if variant in ("attention", "sampling"):
        logits = penalise_repetition(g, logits)
    log_probs = g.op("LogSoftmax", [logits], axis=-1)
    best = best_candidates(g, log_probs, shortlist)
    if variant == "sampling":
        draw_tokens(g, log_probs, best, shortlist)
    if weights:
        heads, by_layer = sum(map(len, layout.cross)), [weights[layer] for layer in sorted(weights)]
        g.output(g.op("Concat", by_layer, axis=1), "attention", "float32", ["B", heads, "k", "S"])
    return g


def _cross_attentions(
    a: Author, tokens: ir.Value, variant: Variant | None, weights: dict[int, ir.Value]
) -> dict[int, RowCrossAttention | _CrossAttention]:
    """Layer → what authors its cross-attention, for layers with open heads. weights: see `_CrossAttention.weights`,
    filled for "attention"."""
    layers = [layer for layer in range(a.arch.decoder_layers) if a.heads("cross", layer)]
    if not layers:
        return {}
    lengths = a.g.input("source_lengths", "int32", ["B"])
    by_row = [n for n in layers if variant == "greedy" and a.linears.row_scales(f"decoder.layers.{n}.encoder_attn")]
    found: dict[int, RowCrossAttention | _CrossAttention] = dict.fromkeys(by_row, RowCrossAttention(a, lengths))
    if len(by_row) < len(layers):
        others = _CrossAttention(a, tokens, lengths, weights if variant == "attention" else None)
        found |= {layer: others for layer in layers if layer not in by_row}
    return found


class _NodeAttention:
    """Self-attention over a tree: a sentence's rows are its query positions and share the nodes they have in common, so
    that nothing is copied when beams change parents, and 4 beams make one product of 4 rows."""

    def __init__(self, a: Author) -> None:
        self.a = a
        most = max(map(len, a.layout.decoder_self))
        places = a.g.input("node_places", "int64", ["B", "k", most, 3])
        bias = a.in_type(a.g.input("node_bias", "float32", ["B", 1, "k", "N"]))
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


class _CrossAttention:
    """Cross-attention where a sentence's beams are its query positions: keys and values are never repeated per beam."""

    def __init__(
        self, a: Author, tokens: ir.Value, lengths: ir.Value, weights: dict[int, ir.Value] | None = None
    ) -> None:
        """weights: where those of each layer, `[B, H_l, k, S]` fp32, are put; None: nowhere."""
        self.a, self.weights, g = a, weights, a.g
        sentences = g.op("Shape", [lengths])
        beams = g.op("Div", [g.op("Shape", [tokens]), sentences])
        self.visible = Visible(g.op("Concat", [sentences, beams], axis=0), 0, a.arch.head_dim, lengths=lengths)

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        a, g, dim = self.a, self.a.g, self.a.arch.head_dim
        prefix, heads = f"decoder.layers.{layer}.encoder_attn", a.heads("cross", layer)
        visible = self.visible.of(heads)
        turned = a.linears.turned(prefix)
        name, places = ("cross_key_turned", (dim, "S")) if turned else ("cross_key", ("S", dim))
        key = g.input(f"{name}_{layer}", a.linears.cache_dtype(prefix, "key"), ["B", heads, *places])
        value = g.input(f"cross_value_{layer}", a.linears.cache_dtype(prefix, "value"), ["B", heads, "S", dim])
        query = a.linear(f"{prefix}.q_proj", x, f"{prefix}.q_proj")
        query = g.op("Reshape", [query, visible.shape(g, heads, dim)])
        y, weights = a.linears.attend(g, prefix, query, key, value, visible)
        if self.weights is not None:
            self.weights[layer] = self._weights(query, key, visible) if weights is None else weights
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
