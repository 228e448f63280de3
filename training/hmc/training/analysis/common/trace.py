"""A forward pass that keeps attention weights after softmax, head outputs and hidden states.

The model computes attention with a fused operation that does not return the weights. This pass uses the model's own
projections, gates and norms, and computes attention step by step. Its states agree with `Transformer.forward` in
evaluation mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hmc.artifact.model.heads import Kind
from hmc.training.model.layers import Attention, FeedForward
from hmc.training.model.transformer import Transformer


@dataclass(frozen=True)
class Heads:
    """Attention weights, values and outputs of the open heads of one attention."""

    weights: Tensor
    """Attention weights after softmax, `[B, H, T, S]`; 0 where the mask forbids a key."""
    values: Tensor
    """`[B, H, S, D]`."""
    outputs: Tensor
    """Weighted sums of the values, multiplied by the gates: `[B, H, T, D]`."""


@dataclass(frozen=True)
class TracedAttention:
    """One attention sub-layer: LN(states + W_O heads + bias). Where norms come first, it has none after."""

    kind: Kind
    layer: int
    module: Attention
    states: Tensor
    """Input of the sub-layer, from which queries are projected: `[B, T, d_model]`."""
    source: Tensor
    """Input of the key and value projections: `[B, S, d_model]`."""
    heads: Heads | None
    """None if every head of the layer is removed."""


@dataclass(frozen=True)
class FeedForwardTrace:
    """One feed-forward sub-layer: LN(states + W_2 hidden + bias)."""

    module: FeedForward
    states: Tensor
    """Input of the sub-layer, `[B, T, d_model]`."""
    hidden: Tensor
    """After the activation function, `[B, T, ffn_dim]`."""


@dataclass(frozen=True)
class Trace:
    """Sub-layers in the order they are computed, and the final states `[B, T, d_model]` of the stack."""

    steps: list[TracedAttention | FeedForwardTrace]
    states: Tensor

    def attentions(self) -> Iterator[TracedAttention]:
        """The attention sub-layers, first to last."""
        return (step for step in self.steps if isinstance(step, TracedAttention))


@torch.no_grad()
def trace_encoder(model: Transformer, source: Tensor) -> Trace:
    """Trace of the encoder on source ids `[B, S]`, padded on the right. Dropout is not applied."""
    mask = source.ne(model.arch.pad_id)[:, None, None, :]
    x = model.embed_source(source)
    steps: list[TracedAttention | FeedForwardTrace] = []
    for number, layer in enumerate(model.encoder_layers):
        if layer.passes:
            continue
        read = layer.read(x, layer.self_attn_layer_norm)
        attended, update = _attend("encoder_self", number, layer.self_attn, read, read, mask)
        x = layer.then(x + update, layer.self_attn_layer_norm)
        fed, update = _feed(layer.ffn, layer.read(x, layer.final_layer_norm))
        x = layer.then(x + update, layer.final_layer_norm)
        steps += [attended, fed]
    return Trace(steps, x if model.encoder_norm is None else model.encoder_norm(x))


@torch.no_grad()
def trace_decoder(model: Transformer, source: Tensor, memory: Tensor, target_in: Tensor) -> Trace:
    """Trace of the decoder on ids target_in `[B, T]`.

    source `[B, S]`: source ids, for their padding. memory `[B, S, d_model]`: the encoder's states.
    """
    mask = source.ne(model.arch.pad_id)[:, None, None, :]
    length = target_in.size(1)
    causal = torch.ones(length, length, dtype=torch.bool, device=target_in.device).tril()
    x = model.embed(target_in)
    steps: list[TracedAttention | FeedForwardTrace] = []
    for number, layer in enumerate(model.decoder_layers):
        if layer.passes:
            continue
        read = layer.read(x, layer.self_attn_layer_norm)
        own, update = _attend("decoder_self", number, layer.self_attn, read, read, causal)
        x = layer.then(x + update, layer.self_attn_layer_norm)
        read = layer.read(x, layer.encoder_attn_layer_norm)
        cross, update = _attend("cross", number, layer.encoder_attn, read, memory, mask)
        x = layer.then(x + update, layer.encoder_attn_layer_norm)
        fed, update = _feed(layer.ffn, layer.read(x, layer.final_layer_norm))
        x = layer.then(x + update, layer.final_layer_norm)
        steps += [own, cross, fed]
    return Trace(steps, x if model.decoder_norm is None else model.decoder_norm(x))


def _feed(module: FeedForward, x: Tensor) -> tuple[FeedForwardTrace, Tensor]:
    hidden = module.activation(module.fc1(x))
    return FeedForwardTrace(module, x, hidden), module.fc2(hidden)


def _attend(
    kind: Kind, layer: int, module: Attention, x: Tensor, source: Tensor, mask: Tensor
) -> tuple[TracedAttention, Tensor]:
    """mask: broadcastable to `[B, H, T, S]`, True = may look. Returns the trace and the update `[B, T, d_model]`."""
    if not module.heads:
        return TracedAttention(kind, layer, module, x, source, None), module.out_bias.expand_as(x)
    batch, length, _ = x.shape
    query = module.query(x).view(batch, length, module.heads, module.head_dim).transpose(1, 2)  # [B, H, T, D]
    keys, values = module.project(source)
    scores = (query * module.head_dim**-0.5) @ keys.transpose(-1, -2)  # [B, H, T, S]
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    outputs = module.gate(weights @ values)
    joined = outputs.transpose(1, 2).reshape(batch, length, -1)
    update = torch.nn.functional.linear(joined, module.out_weight, module.out_bias)
    return TracedAttention(kind, layer, module, x, source, Heads(weights, values, outputs)), update
