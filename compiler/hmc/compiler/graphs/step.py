"""One decoder step up to its logits: what every decoder graph has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import onnx_ir as ir

from hmc.artifact.model.architecture import TARGET_EMBEDDING
from hmc.compiler.graphs.attention import CrossAttention, RowCrossAttention
from hmc.compiler.graphs.blocks import Author
from hmc.compiler.graphs.shortlist import Shortlist


class AttentionWriter(Protocol):
    """Writes the attention sub-layers of one kind."""

    def author(self, x: ir.Value, layer: int) -> ir.Value:
        """States `[R, d]` → states after the attention of `layer`, with residual and norm."""


def author_logits(
    a: Author,
    tokens: ir.Value,
    lengths: ir.Value,
    own: AttentionWriter | None,
    cross: Mapping[int, AttentionWriter],
    with_shortlist: bool = False,
) -> tuple[ir.Value, Shortlist | None]:
    """The layers of the decoder and the output projection: → logits `[R, V]` fp32, and the shortlist if there is one.

    tokens: the last token of each row; lengths: how many tokens each row has read before. Both are `[R]`, or tokens
    `[B, k]` and lengths `[B]`, with R = B k. own: self-attention; None where no layer has open heads. cross: layer →
    cross-attention, for the layers that have open heads.
    """
    g = a.g
    arch = a.arch
    by_sentence = tokens.shape is not None and len(tokens.shape) == 2
    last = g.op("Unsqueeze", [tokens, g.ints(1)]) if a.by_row else tokens
    places = g.op("Unsqueeze", [lengths, g.ints(1)]) if a.by_row or by_sentence else lengths
    x = a.embed(last, TARGET_EMBEDDING, lambda all_: g.op("Gather", [all_, places], axis=0))
    x = g.op("Reshape", [x, g.ints(-1, arch.d_model)]) if by_sentence else x
    for layer in a.layers("decoder"):
        if a.open_heads("decoder_self", layer) and own:
            x = own.author(x, layer)
        else:
            x = a.closed_attention(x, arch.attention("decoder_self", layer))
        source = arch.attention("cross", layer)
        x = cross[layer].author(x, layer) if layer in cross else a.closed_attention(x, source)
        x = a.feed_forward(x, arch.feed_forward("decoder", layer))
    x = a.stack_end(x, "decoder")
    x = g.op("Squeeze", [x, g.ints(1)]) if a.by_row else x
    shortlist = Shortlist(g, arch.output_layer) if with_shortlist else None
    logits = shortlist.logits(x, arch.d_model, a.linears) if shortlist else a.output_projection(x)
    if a.linears.dtype != "float32":
        logits = g.op("Cast", [logits], to=int(ir.DataType.FLOAT))
    return logits, shortlist


def cross_attentions(
    a: Author,
    tokens: ir.Value,
    *,
    greedy: bool = False,
    weights: dict[int, ir.Value] | None = None,
) -> dict[int, AttentionWriter]:
    """Layer → the writer of its cross-attention, for layers with open heads.

    tokens: `[R]` or `[B, k]`. greedy: k is 1. weights: is filled as by `CrossAttention`. The input `source_lengths`,
    `[B]` int32, is there if a layer has open heads.
    """
    layers = [layer for layer in range(a.arch.decoder_layers) if a.open_heads("cross", layer)]
    if not layers:
        return {}
    lengths = a.g.input("source_lengths", "int32", ["B"])
    by_row = [n for n in layers if greedy and a.linears.row_scales(a.arch.attention("cross", n))]
    writers: dict[int, AttentionWriter] = dict.fromkeys(by_row, RowCrossAttention(a, lengths))
    if len(by_row) < len(layers):
        fused = CrossAttention(a, tokens, lengths, weights)
        writers |= {layer: fused for layer in layers if layer not in by_row}
    return writers
