"""decoder.onnx: one decoding step, from last tokens and caches to top-k log-probabilities and updated caches.

Its variants are graphs of their own over the same weights. A server opens one when the first request needs it.
"""

from __future__ import annotations

import onnx_ir as ir

from hmc.artifact.bundle.manifest import SEARCH_VARIANTS, Variant
from hmc.artifact.checkpoint.checkpoint import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.compiler.graph import GraphBuilder
from hmc.compiler.graphs.blocks import Author
from hmc.compiler.graphs.choices import best_candidates, draw_tokens, penalise_repetition
from hmc.compiler.graphs.device_author import DeviceAuthor
from hmc.compiler.graphs.node_attention import NodeAttention
from hmc.compiler.graphs.row_attention import RowAttention, states_by_row
from hmc.compiler.graphs.search.author import author_search
from hmc.compiler.graphs.step import Attention, author_logits, cross_attentions
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
) -> GraphBuilder:
    """Writes a decoder step of R rows; the k = R / B beams of a sentence are neighbouring rows.

    variant: None is for beam search. "greedy" is for sentences of one row each (k = 1): one operator replaces the dozen
    that attention over nodes takes. "attention" also returns attention weights; "sampling" also samples a token
    (`draw_tokens`); both penalise repetition (`penalise_repetition`). with_shortlist: candidates come from vocabulary
    shortlists (`Shortlist` describes the additional inputs). device_form: few launches, for a device. Only
    such levels have "search_greedy" and "search_beam": these hold the search, and `author_search` lists their inputs
    and outputs.

    Inputs:

    - `tokens` `[R]` int32: the last token of each row; `lengths` `[R]` int32: how many tokens it has read before that.
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
    - "attention": `attention` `[B, H, k, S]` fp32, the attention weights of all H open cross heads, layer by layer.

    Element types of caches are those in which `linears` keeps them.
    """
    by_row = variant == "greedy" and states_by_row(arch, layout, tensors, linears)
    kind = DeviceAuthor if device_form else Author
    a = kind(GraphBuilder("decoder"), arch, layout, tensors, linears, by_row)
    g = a.g
    if variant in SEARCH_VARIANTS:
        author_search(a, variant)
        return g
    tokens, lengths = g.input("tokens", "int32", ["R"]), g.input("lengths", "int32", ["R"])
    own: Attention | None = None
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
        heads, by_layer = sum(map(len, layout.cross)), [weights[layer] for layer in sorted(weights)]
        g.output(g.op("Concat", by_layer, axis=1), "attention", "float32", ["B", heads, "k", "S"])
    return g
