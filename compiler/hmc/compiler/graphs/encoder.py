"""encoder.onnx: source ids and lengths → cross keys and values of every decoder layer with open cross heads."""

from __future__ import annotations

import onnx_ir as ir

from hmc.artifact.checkpoint.checkpoint import Tensors
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.heads import HeadLayout
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.graphs.blocks import Author
from hmc.compiler.graphs.device_author import DeviceAuthor
from hmc.compiler.graphs.slot_caches import SlotCaches
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
    g, d = a.g, arch.d_model
    sentences, positions = ("b", "s") if device_form else ("B", "S")  # B and S are then those of the caches
    source = g.input("source", "int32", [sentences, positions])
    lengths = g.input("source_lengths", "int32", [sentences])
    shape = g.op("Shape", [source])
    length = g.op("Shape", [source], start=1, end=2)
    states = a.embed(source, arch.source_embedding, lambda all_: g.op("Slice", [all_, g.ints(0), length, g.ints(0)]))
    x = g.op("Reshape", [states, g.ints(-1, d)])
    for layer in a.layers("encoder"):
        x = _self_attention(a, x, shape, lengths, layer)
        x = a.feed_forward(x, f"encoder.layers.{layer}")
    x = a.stack_end(x, "encoder")
    if isinstance(a, DeviceAuthor):
        SlotCaches(a, x, shape).author()
        return g
    for layer in range(arch.decoder_layers):
        _cross_projection(a, x, shape, layer)
    return g


def _self_attention(a: Author, x: ir.Value, shape: ir.Value, lengths: ir.Value, layer: int) -> ir.Value:
    g, prefix, heads = a.g, f"encoder.layers.{layer}.self_attn", a.heads("encoder_self", layer)
    if not heads:
        return a.closed_attention(x, prefix)
    inner = heads * a.arch.head_dim
    shape = g.op("Concat", [shape, g.ints(inner)], axis=0)
    parts, bias = a.source_projections(a.entry(x, f"{prefix}_layer_norm"), prefix)
    query, key, value = (g.op("Reshape", [part, shape]) for part in parts)
    y = g.op("MultiHeadAttention", [query, key, value, bias, lengths], domain=MICROSOFT, num_heads=heads)
    return a.end_attention(x, g.op("Reshape", [y, g.ints(-1, inner)]), prefix, full_bias=not a.device_form)


def _cross_projection(a: Author, x: ir.Value, shape: ir.Value, layer: int) -> None:
    g, prefix, heads, dim = a.g, f"decoder.layers.{layer}.encoder_attn", a.heads("cross", layer), a.arch.head_dim
    if not heads:
        return
    parts = a.several(f"{prefix}.kv_proj", x, f"{prefix}.k_proj", f"{prefix}.v_proj")
    shape = g.op("Concat", [shape, g.ints(heads, dim)], axis=0)
    for part, tensor in zip(("key", "value"), parts, strict=True):
        kept = g.op("Reshape", [a.linears.cached(g, prefix, part, tensor), shape])
        dtype = a.linears.cache_dtype(prefix, part)
        rows = g.op("Transpose", [kept], perm=[0, 2, 1, 3])
        g.output(rows, f"cross_{part}_{layer}", dtype, ["B", heads, "S", dim])
        if part == "key" and a.linears.transposed(prefix):
            turned = g.op("Transpose", [kept], perm=[0, 2, 3, 1])
            g.output(turned, f"cross_key_turned_{layer}", dtype, ["B", heads, dim, "S"])
