"""decoder.onnx: one decoding step, from last tokens and caches to top-k log-probabilities and updated caches.

Its variants are graphs of their own over the same weights. A server opens one when the first request needs it. A
*column* is one of the logits `[R, V]`: a token id or, with a shortlist, a place in the row's list (V is then L).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, Variant
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout, HeadOrder
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.graphs.attention import NodeAttention, RowAttention, states_by_row
from hmc.compiler.graphs.blocks import Author
from hmc.compiler.graphs.device_author import DeviceAuthor
from hmc.compiler.graphs.search.graphs import author_search
from hmc.compiler.graphs.shortlist import Shortlist
from hmc.compiler.graphs.step import AttentionWriter, author_logits, cross_attentions
from hmc.compiler.precisions.linears import Linears


def author_decoder(
    arch: Architecture,
    layout: HeadLayout,
    tensors: Tensors,
    linears: Linears,
    *,
    variant: Variant | None = None,
    with_shortlist: bool = False,
    device_form: bool = False,
    order: HeadOrder | None = None,
) -> GraphBuilder:
    """Writes a decoder step of R rows; the k = R / B beams of a sentence are neighbouring rows.

    variant: None is for beam search. "greedy" is for sentences of one row each (k = 1): one operator replaces the dozen
    that attention over nodes takes. "attention" also returns attention weights; "sampling" also samples a token
    (`draw_tokens`); both penalise repetition (`penalise_repetition`). with_shortlist: candidates come from vocabulary
    shortlists (`Shortlist` describes the additional inputs). device_form: few launches, for a device. Only
    such levels have "search_greedy" and "search_beam": these hold the search, and `author_search` lists their inputs
    and outputs. order: of the heads in `tensors`. None: by their numbers.

    Inputs:

    - `tokens` `[R]` int32: the last token of each row; `lengths` `[R]` int32: how many tokens the row has read before.
    - `candidates` `[1]` int64: K; `wanted` `[R]` int64: a token or, with a shortlist, a place in the row's list.
    - For each layer l with open cross heads, `cross_key_l` or `cross_key_turned_l`, and `cross_value_l`, as the encoder
      returns them; and `source_lengths` `[B]` int32.
    - For each layer l with open self-attention heads, `past_key_l` and `past_value_l`, in one of two forms. All but
      "greedy" have nodes, `[B, H_l, N, D]`: N places that hold the keys and values of all tokens of a sentence's rows,
      in any order. `node_places` `[B, k, H, 3]` int64, H the most heads of any layer, is (sentence, head, place) where
      each row's new key and value go. `node_bias` `[B, 1, k, N]` fp32 is 0 where a row attends to a place, its own new
      one included, and -inf elsewhere. "greedy" has rows, `[R, H_l, T, D]`, with position t at place t; `total_length`
      `[1]` int32 is at least the greatest length plus one, and at most T.

    Outputs:

    - `scores` `[R, K]` fp32 log-probabilities, best first; `ids` `[R, K]` int64; `wanted_scores` `[R]` fp32.
    - `present_key_l`, `present_value_l`, shaped as the past. They may be the same buffers, written in place.
    - "greedy" with 8-bit caches: `present_cross_key_l`, `present_cross_value_l`. Bind them to the buffers of the
      inputs: then nothing is written; else they are copied.
    - "attention": `attention` `[B, H, k, S]` fp32, the attention weights of all H open cross heads, layer by layer, by
      their numbers.

    Caches have the element types in which `linears` keeps them.
    """
    by_row = variant == "greedy" and states_by_row(arch, layout, tensors, linears)
    kind = DeviceAuthor if device_form else Author
    a = kind(GraphBuilder("decoder"), arch, layout, tensors, linears, by_row)
    g = a.g
    if variant in SEARCH_VARIANTS:
        author_search(a, variant)
        return g
    tokens = g.input("tokens", "int32", ["R"])
    lengths = g.input("lengths", "int32", ["R"])
    own: AttentionWriter | None = None
    if any(layout.decoder_self):
        own = RowAttention(a, lengths) if variant == "greedy" else NodeAttention(a)
    weights: dict[int, ir.Value] = {}
    kept = weights if variant == "attention" else None
    cross = cross_attentions(a, tokens, greedy=variant == "greedy", weights=kept)
    logits, shortlist = author_logits(a, tokens, lengths, own, cross, with_shortlist)
    if variant in ("attention", "sampling"):
        logits = penalise_repetition(g, logits)
    log_probs = g.op("LogSoftmax", [logits], axis=-1)
    best = best_candidates(g, log_probs, shortlist)
    if variant == "sampling":
        draw_tokens(g, log_probs, best, shortlist)
    if weights:
        open_heads = sum(map(len, layout.cross))
        joint = g.op("Concat", [weights[layer] for layer in sorted(weights)], axis=1)
        rows = (order or layout)["cross"]
        names = [(layer, head) for layer in sorted(weights) for head in rows[layer]]
        places = sorted(range(open_heads), key=names.__getitem__)
        if places != list(range(open_heads)):
            joint = g.op("Gather", [joint, g.ints(*places)], axis=1)
        g.output(joint, "attention", "float32", ["B", open_heads, "k", "S"])
    return g


def penalise_repetition(g: GraphBuilder, logits: ir.Value) -> ir.Value:
    """logits `[R, V]` → logits in which the tokens that a row already has are less likely (Keskar et al. 2019, section
    4.1).

    It adds these inputs: `penalised` `[R, M]` int64, columns, which may repeat; `penalties` `[R]` fp32, θ, where 1
    changes nothing. A positive logit is divided by θ and a negative one multiplied: both lower it for θ > 1.
    """
    ids = g.input("penalised", "int64", ["R", "M"])
    theta = g.op("Unsqueeze", [g.input("penalties", "float32", ["R"]), g.ints(1)])
    old = g.op("GatherElements", [logits, ids], axis=1)  # [R, M]
    positive = g.op("Greater", [old, g.weight("const.zero", np.asarray(0, np.float32))])
    new = g.op("Where", [positive, g.op("Div", [old, theta]), g.op("Mul", [old, theta])])
    value: ir.Value = g.op("ScatterElements", [logits, ids, new], axis=1)
    return value


def best_candidates(g: GraphBuilder, log_probs: ir.Value, shortlist: Shortlist | None = None) -> ir.Value:
    """Writes the outputs that every decoder has, from log_probs `[R, V]`. Returns the columns of the best, `[R, K]`.

    `scores` `[R, K]` fp32 and `ids` `[R, K]` int64: the log-probabilities and tokens of the best, best first; K is the
    input `candidates` `[1]` int64. `wanted_scores` `[R]` fp32: the log-probability of the input `wanted` `[R]` int64, a
    column.
    """
    candidates = g.input("candidates", "int64", [1])
    wanted = g.input("wanted", "int64", ["R"])
    scores, columns = g.op("TopK", [log_probs, candidates], outputs=2)
    g.output(scores, "scores", "float32", ["R", "K"])
    g.output(shortlist.tokens(columns) if shortlist else columns, "ids", "int64", ["R", "K"])
    g.output(_pick_column(g, log_probs, wanted), "wanted_scores", "float32", ["R"])
    value: ir.Value = columns
    return value


def draw_tokens(g: GraphBuilder, log_probs: ir.Value, best: ir.Value, shortlist: Shortlist | None = None) -> None:
    """Samples one token a row from softmax(log P / temperature) over all columns that are not banned.

    It adds these inputs: `banned` `[R, N]` int64, columns, which may repeat; `temperatures` `[R]` fp32; `uniforms`
    `[R]` fp32 in [0, 1). The sampled token is the one at which the cumulative distribution, in order of columns,
    exceeds the uniform number. Outputs: `sampled` `[R]` int64; `sampled_scores` `[R]` fp32, its log P at temperature 1;
    `weights` `[R, K]` fp32, the probabilities of the columns `best` under that softmax.
    """
    banned = g.input("banned", "int64", ["R", "N"])
    temperatures = g.input("temperatures", "float32", ["R"])
    uniforms = g.input("uniforms", "float32", ["R"])
    never = g.weight("const.never", np.asarray(-np.inf, np.float32))
    allowed = g.op("ScatterElements", [log_probs, banned, g.op("Expand", [never, g.op("Shape", [banned])])], axis=1)
    weights = g.op("Softmax", [g.op("Div", [allowed, g.op("Unsqueeze", [temperatures, g.ints(1)])])], axis=-1)
    g.output(g.op("GatherElements", [weights, best], axis=1), "weights", "float32", ["R", "K"])
    below = g.op("CumSum", [weights, g.weight("const.axis_1", np.asarray(1, np.int64))])  # [R, V]
    total = g.op("Slice", [below, g.ints(-1), g.ints(np.iinfo(np.int64).max), g.ints(1)])  # [R, 1], about 1
    place = g.op("Mul", [g.op("Unsqueeze", [uniforms, g.ints(1)]), total])
    passed = g.op("Cast", [g.op("LessOrEqual", [below, place])], to=int(ir.DataType.INT32))
    count = g.op("ReduceSum", [passed, g.ints(1)], keepdims=0)
    drawn = g.op("Cast", [count], to=int(ir.DataType.INT64))
    sampled = drawn
    if shortlist:
        sampled = g.op("Squeeze", [shortlist.tokens(g.op("Unsqueeze", [drawn, g.ints(1)])), g.ints(1)])
    g.output(_pick_column(g, log_probs, drawn), "sampled_scores", "float32", ["R"])
    g.output(sampled, "sampled", "int64", ["R"])


def _pick_column(g: GraphBuilder, log_probs: ir.Value, column: ir.Value) -> ir.Value:
    """log_probs `[R, V]`, column `[R]` → `[R]`."""
    picked = g.op("GatherElements", [log_probs, g.op("Unsqueeze", [column, g.ints(1)])], axis=1)
    value: ir.Value = g.op("Squeeze", [picked, g.ints(1)])
    return value
