"""What the sub-layers of a model read and compute in a forward pass: attention weights, head outputs, hidden states.

Hooks on the model's own modules keep the inputs of every sub-layer while the model runs. Its attention is one fused
operation that does not return weights after softmax: these are computed again, from the same queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hmc.artifact.model.heads import AttentionKind
from hmc.training.model.cpu import KeyValues
from hmc.training.model.layers import Attention, DecoderLayer, FeedForward
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
    """One attention sub-layer: LN(residual + W_O heads + bias). If norms come first, no norm follows it."""

    kind: AttentionKind
    layer: int
    module: Attention
    states: Tensor
    """Input of the sub-layer, from which queries are projected: `[B, T, d_model]`."""
    source: Tensor
    """Input of the key and value projections: `[B, S, d_model]`. Without heads it is `states`."""
    residual: Tensor
    """What the residual connection adds, `[B, T, d_model]`: `states`, or, where norms come first, what the norm made
    `states` of."""
    heads: Heads | None
    """None if every head of the layer is removed."""


@dataclass(frozen=True)
class FeedForwardTrace:
    """One feed-forward sub-layer: LN(residual + W_2 hidden + bias). If norms come first, no norm follows it."""

    module: FeedForward
    states: Tensor
    """Input of the sub-layer, `[B, T, d_model]`."""
    hidden: Tensor
    """After the activation function, `[B, T, ffn_dim]`."""
    residual: Tensor
    """As that of an attention."""


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
    """Trace of the encoder on source ids `[B, S]`, padded on the right. The model should be in evaluation mode."""
    with _recording(model) as steps:
        states, _ = model.encode(source)
    return Trace(steps, states)


@torch.no_grad()
def trace_decoder(model: Transformer, source: Tensor, memory: Tensor, target_in: Tensor) -> Trace:
    """Trace of the decoder on ids target_in `[B, T]`.

    source `[B, S]`: source ids, for their padding. memory `[B, S, d_model]`: the encoder's states.
    """
    mask = source.ne(model.arch.pad_id)[:, None, None, :]
    with _recording(model) as steps:
        states = model.decode(memory, mask, target_in)
    return Trace(steps, states)


@contextmanager
def _recording(model: Transformer) -> Iterator[list[TracedAttention | FeedForwardTrace]]:
    """Yields the sub-layers that the model computes within the context, in their order."""
    steps: list[TracedAttention | FeedForwardTrace] = []
    before: dict[nn.Module, list[Tensor]] = {}
    """What was read by the norm that comes before a sub-layer, last; nothing where norms come after."""
    hooks = []
    for part, norm in _norms_before(model):
        before[part] = []
        hooks.append(norm.register_forward_pre_hook(_keeper(before[part])))
    for *_, ffn in model.feed_forwards():
        hooks.append(ffn.register_forward_hook(_feed_forward(steps, before.get(ffn, []))))
    for kind, layer, attention in model.attentions():
        sources: list[Tensor] = []
        if attention.heads:
            hooks.append(attention.key_value.register_forward_pre_hook(_keeper(sources)))
        keeper = _attention(steps, kind, layer, sources, before.get(attention, []))
        hooks.append(attention.register_forward_hook(keeper, with_kwargs=True))
    try:
        yield steps
    finally:
        for hook in hooks:
            hook.remove()


def _norms_before(model: Transformer) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Every sub-layer with the norm that it reads through, where norms come first."""
    if not model.arch.pre_norm:
        return
    for _, _, layer in model.layers():
        yield layer.self_attn, layer.self_attn_layer_norm
        yield layer.ffn, layer.final_layer_norm
        if isinstance(layer, DecoderLayer):
            yield layer.encoder_attn, layer.encoder_attn_layer_norm


def _keeper(into: list[Tensor]) -> Any:
    def keep(_module: nn.Module, arguments: tuple[Tensor]) -> None:
        into.append(arguments[0])

    return keep


def _feed_forward(steps: list[TracedAttention | FeedForwardTrace], before: list[Tensor]) -> Any:
    """before: what the norm before the sub-layer has read, last; empty where norms come after."""

    def keep(module: FeedForward, arguments: tuple[Tensor], _output: Tensor) -> None:
        [states] = arguments
        hidden = module.activation(module.fc1(states))
        steps.append(FeedForwardTrace(module, states, hidden, before[-1] if before else states))

    return keep


def _attention(
    steps: list[TracedAttention | FeedForwardTrace],
    kind: AttentionKind,
    layer: int,
    sources: list[Tensor],
    before: list[Tensor],
) -> Any:
    """sources: what keys and values were projected from, last. before: see `_feed_forward`."""

    def keep(
        module: Attention, arguments: tuple[Tensor, KeyValues | None, Tensor | None], causal: dict[str, bool], _: Tensor
    ) -> None:
        states, projected, mask = arguments
        residual = before[-1] if before else states
        if projected is None:
            steps.append(TracedAttention(kind, layer, module, states, states, residual, None))
            return
        heads = _heads(module, states, projected, mask, **causal)
        steps.append(TracedAttention(kind, layer, module, states, sources[-1], residual, heads))

    return keep


def _heads(module: Attention, states: Tensor, source: KeyValues, mask: Tensor | None, *, causal: bool = False) -> Heads:
    """The arguments are those of `Attention.forward`."""
    batch, length, _ = states.shape
    query = module.query(states).view(batch, length, module.heads, module.head_dim).transpose(1, 2)  # [B, H, T, D]
    scores = (query * module.head_dim**-0.5) @ source.keys.transpose(-1, -2)  # [B, H, T, S]
    if causal:
        mask = torch.ones(length, length, dtype=torch.bool, device=states.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return Heads(weights, source.values, module.gate(weights @ source.values))
