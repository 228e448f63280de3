"""encoder.onnx: source ids and lengths → cross keys and values of every decoder layer with open cross heads."""

from __future__ import annotations

import onnx_ir as ir

from hmc.artifact.architecture import Architecture
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.heads import HeadLayout
from hmc.compiler.blocks import Author
from hmc.compiler.graph import MICROSOFT, GraphBuilder
from hmc.compiler.linears import Linears


def author_encoder(arch: Architecture, layout: HeadLayout, tensors: Tensors, linears: Linears) -> GraphBuilder:
    """Inputs: `source` `[B, S]` int32, padded at will; `source_lengths` `[B]` int32 with EOS.

    Outputs for each decoder layer l with H_l > 0 open cross heads: `cross_key_l`, `cross_value_l` `[B, H_l, S, D]`, in
    the types in which `linears` keeps them; where it also turns keys, `cross_key_turned_l` `[B, H_l, D, S]`. Padding
    never reaches a real position. With no open cross head at all the graph has no outputs and is not needed.
    """
    a = Author(GraphBuilder("encoder"), arch, layout, tensors, linears)
    g, d = a.g, arch.d_model
    source = g.input("source", "int32", ["B", "S"])
    lengths = g.input("source_lengths", "int32", ["B"])
    shape = g.op("Shape", [source])
    length = g.op("Shape", [source], start=1, end=2)
    states = a.embed(source, arch.source_embedding, lambda all_: g.op("Slice", [all_, g.ints(0), length, g.ints(0)]))
    x = g.op("Reshape", [states, g.ints(-1, d)])
    for layer in range(arch.encoder_layers):
        x = _self_attention(a, x, shape, lengths, layer)
        x = a.feed_forward(x, f"encoder.layers.{layer}")
    for layer in range(arch.decoder_layers):
        _cross_projection(a, x, shape, layer)
    return g


def _self_attention(a: Author, x: ir.Value, shape: ir.Value, lengths: ir.Value, layer: int) -> ir.Value:
    g, prefix, heads = a.g, f"encoder.layers.{layer}.self_attn", a.heads("encoder_self", layer)
    if not heads:
        return a.closed_attention(x, prefix)
    inner = heads * a.arch.head_dim
    shape = g.op("Concat", [shape, g.ints(inner)], axis=0)
    parts = a.several(f"{prefix}.qkv_proj", x, *(f"{prefix}.{p}_proj" for p in "qkv"))
    query, key, value = (g.op("Reshape", [part, shape]) for part in parts)
    y = g.op("MultiHeadAttention", [query, key, value, None, lengths], domain=MICROSOFT, num_heads=heads)
    y = a.linear(f"{prefix}.out_proj", g.op("Reshape", [y, g.ints(-1, inner)]), f"{prefix}.out_proj")
    return a.add_norm(x, y, f"{prefix}_layer_norm")


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
        if part == "key" and a.linears.turned(prefix):
            turned = g.op("Transpose", [kept], perm=[0, 2, 3, 1])
            g.output(turned, f"cross_key_turned_{layer}", dtype, ["B", heads, dim, "S"])
