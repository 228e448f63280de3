"""Layers of the Transformer: attention, feed-forward sub-layers, encoder and decoder layers, and the decoder's cache.

Attention is written once for all three kinds, with a gate on every head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from hmc.training.model.cpu import Dropout, KeyValues, Linear, attend, linear, precision_of
from hmc.training.model.gates import ClosedGate, Gate, OpenGate, SelectedHeads

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "swish": functional.silu,
    "gelu": functional.gelu,
}


class Attention(nn.Module):
    """MultiHead(Q, K, V) = Concat_h(g_h · head_h) W_O (Voita et al. 2019, section 6.1).

    With 0 heads only W_O's bias remains. Key and value projections are one matrix, `key_value` `[2·H·D, d_model]`.
    of: number of heads of the whole attention, which sets the scale of each head's first weights (default: heads).
    """

    gate: Gate

    def __init__(self, *, d_model: int, heads: int, head_dim: int, of: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.head_dim = head_dim
        inner = heads * head_dim
        if heads:
            self.query = Linear(d_model, inner)
            self.key_value = Linear(d_model, 2 * inner)
            self.out_weight = nn.Parameter(torch.empty(d_model, inner))
            for weight in (self.query.weight, *self.key_value.weight.chunk(2), self.out_weight):
                _xavier(weight, d_model, head_dim * (of or heads))
            nn.init.zeros_(self.query.bias)
            nn.init.zeros_(self.key_value.bias)
        self.out_bias = nn.Parameter(torch.zeros(d_model))
        self.gate = OpenGate()

    def project(self, states: Tensor) -> KeyValues:
        """states `[B, S, d_model]` → keys and values `[B, H, S, D]` of the heads that are computed."""
        batch, length, _ = states.shape
        layer = self.key_value
        heads = self.heads
        if isinstance(self.gate, SelectedHeads):
            heads = self.gate.heads
            fused = _some_rows(layer, states, self.gate.pairs)
        else:
            fused = layer(states)
        return KeyValues(fused.view(batch, length, 2, heads, self.head_dim).permute(2, 0, 3, 1, 4))

    def forward(self, states: Tensor, source: KeyValues | None, mask: Tensor | None, *, causal: bool = False) -> Tensor:
        """states `[B, T, d_model]`, keys and values of `source`, mask broadcastable to `[B, H, T, S]` (True = attend)
        → `[B, T, d_model]`. causal: position t attends to positions up to t."""
        if not self.heads or source is None:
            return self.out_bias.expand_as(states)
        some = self.gate if isinstance(self.gate, SelectedHeads) else None
        heads = some.heads if some else self.heads
        batch, length, _ = states.shape
        query = _some_rows(self.query, states, some.rows) if some else self.query(states)
        query = query.view(batch, length, heads, self.head_dim).transpose(1, 2)
        context = attend(query, source, mask, causal=causal)
        context = self.gate(context)  # [B, H, T, D]
        joined = context.transpose(1, 2).reshape(batch, length, heads * self.head_dim)
        weight = self.out_weight.index_select(1, some.rows) if some else self.out_weight
        return linear(joined, weight, self.out_bias)


def _some_rows(layer: nn.Linear, x: Tensor, rows: Tensor) -> Tensor:
    """x `[…, I]`, rows `[N]`, indices of outputs → those outputs of the layer, `[…, N]`."""
    return linear(x, layer.weight.index_select(0, rows), layer.bias.index_select(0, rows))


def _xavier(weight: Tensor, *fans: int) -> None:
    """Glorot and Bengio 2010, eq. 16. fans: sizes of the whole matrix, of which `weight` may be a part; what is left
    out does not change how the rest begins."""
    reach = math.sqrt(3.0) * math.sqrt(2.0 / sum(fans))
    nn.init.uniform_(weight, -reach, reach)


class FeedForward(nn.Module):
    """Position-wise feed-forward sub-layer `[…, d_model]` → `[…, d_model]`, with a gate on every neuron.

    With 0 neurons only the bias of `fc2` remains, and the empty matrices are not trained.
    of: number of neurons of the whole sub-layer, which sets the scale of the first weights (default: neurons).
    """

    gate: Gate

    def __init__(self, d_model: int, neurons: int, activation: str, of: int | None = None) -> None:
        super().__init__()
        self.neurons = neurons
        width = neurons or 1  # PyTorch warns when an empty matrix is initialised
        self.fc1 = Linear(d_model, width)
        self.fc2 = Linear(width, d_model)
        self.activation = ACTIVATIONS[activation]
        self.gate = OpenGate()
        for part in (self.fc1, self.fc2):
            _xavier(part.weight, d_model, of or width)
            nn.init.zeros_(part.bias)
        if not neurons:
            self.fc1.weight = nn.Parameter(self.fc1.weight[:0], requires_grad=False)
            self.fc1.bias = nn.Parameter(self.fc1.bias[:0], requires_grad=False)
            self.fc2.weight = nn.Parameter(self.fc2.weight[:, :0], requires_grad=False)

    def forward(self, states: Tensor) -> Tensor:
        if not self.neurons:
            return self.fc2.bias.expand_as(states)
        hidden = self.activation(self.fc1(states))  # [B, T, neurons]
        return self.fc2(self.gate(hidden[..., None, None]).flatten(-3))  # a gate sees neurons as heads of 1 × 1


class Layer(nn.Module):
    """Base of encoder and decoder layers. A layer can be gated or removed as a whole."""

    gate: Gate
    """Its value z makes the layer's output x + z (f(x) - x), where f is the layer: all of it, or nothing."""
    removed: bool
    """Whether the layer was removed: its output is then its input, and its weights are unused and frozen."""

    def __init__(self, pre_norm: bool = False) -> None:
        super().__init__()
        self.gate = OpenGate()
        self.removed = False
        self.pre_norm = pre_norm

    @property
    def passes(self) -> bool:
        """Whether the output is the input, because the layer was removed or is closed."""
        return self.removed or isinstance(self.gate, ClosedGate)

    def gated(self, x: Tensor, output: Tensor) -> Tensor:
        """x and f(x), both `[B, T, d_model]` → the layer's output."""
        if isinstance(self.gate, OpenGate):
            return output
        return x + self.gate((output - x)[:, None])[:, 0]  # a gate sees the layer as one head

    def read(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The input of a sub-layer from the states x: norm(x) if norms come first, else x."""
        return norm(x) if self.pre_norm else x

    def then(self, x: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
        """The states after a residual connection: norm(x), and x where norms come first."""
        return x if self.pre_norm else norm(x)


class EncoderLayer(Layer):
    """Self-attention and feed-forward, each followed by dropout, residual connection and layer norm.

    norm: makes a norm of states. pre_norm: the norms are on the inputs of attention and feed-forward.
    """

    def __init__(
        self,
        self_attn: Attention,
        ffn: FeedForward,
        norm: Callable[[], nn.Module],
        dropout: float,
        *,
        pre_norm: bool = False,
    ) -> None:
        super().__init__(pre_norm)
        self.self_attn = self_attn
        self.ffn = ffn
        self.dropout = Dropout(dropout)
        self.self_attn_layer_norm = norm()
        self.final_layer_norm = norm()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x `[B, S, d_model]`, mask `[B, 1, 1, S]` (True = real token) → `[B, S, d_model]`."""
        if self.passes:
            return x
        whole = x
        states = self.read(x, self.self_attn_layer_norm)
        states = states.to(precision_of(states))  # one conversion serves all products
        own = self.self_attn.project(states) if self.self_attn.heads else None
        x = self.then(self.dropout.add(x, self.self_attn(states, own, mask)), self.self_attn_layer_norm)
        fed = self.ffn(self.read(x, self.final_layer_norm))
        return self.gated(whole, self.then(self.dropout.add(x, fed), self.final_layer_norm))


@dataclass
class DecoderCache:
    """Keys and values of every decoder layer. None: the layer has no heads of that kind."""

    own: list[KeyValues | None] = field(default_factory=list)
    """Self-attention: one position more after every step."""
    cross: list[KeyValues | None] = field(default_factory=list)
    """Cross-attention: computed once."""
    position: int = 0
    """Steps done so far."""

    def select(self, rows: Tensor) -> None:
        """Replaces the batch by its rows `rows`, an index tensor."""
        for caches in (self.own, self.cross):
            for layer, entry in enumerate(caches):
                if entry is not None:
                    caches[layer] = entry.select(rows)


class DecoderLayer(Layer):
    """Causal self-attention, cross-attention and feed-forward, each followed by dropout, residual and layer norm.

    norm, pre_norm: see `EncoderLayer`.
    """

    def __init__(
        self,
        self_attn: Attention,
        encoder_attn: Attention,
        ffn: FeedForward,
        norm: Callable[[], nn.Module],
        dropout: float,
        *,
        pre_norm: bool = False,
    ) -> None:
        super().__init__(pre_norm)
        self.self_attn = self_attn
        self.encoder_attn = encoder_attn
        self.ffn = ffn
        self.dropout = Dropout(dropout)
        self.self_attn_layer_norm = norm()
        self.encoder_attn_layer_norm = norm()
        self.final_layer_norm = norm()

    def own_keys(self, x: Tensor) -> KeyValues | None:
        """Keys and values of self-attention for states x `[B, T, d_model]`; None without heads."""
        return self.self_attn.project(self.read(x, self.self_attn_layer_norm)) if self.self_attn.heads else None

    def forward(self, x: Tensor, own: KeyValues | None, cross: KeyValues | None, mask: Tensor | None) -> Tensor:
        """x `[B, T, d_model]`, source mask `[B, 1, 1, S]` → `[B, T, d_model]`.

        Self-attention is causal when T > 1. When T = 1, `own` holds the keys and values of all positions so far.
        """
        if self.passes:
            return x
        whole = x
        causal = x.size(1) > 1
        update = self.self_attn(self.read(x, self.self_attn_layer_norm), own, None, causal=causal)
        x = self.then(self.dropout.add(x, update), self.self_attn_layer_norm)
        update = self.encoder_attn(self.read(x, self.encoder_attn_layer_norm), cross, mask)
        x = self.then(self.dropout.add(x, update), self.encoder_attn_layer_norm)
        fed = self.ffn(self.read(x, self.final_layer_norm))
        return self.gated(whole, self.then(self.dropout.add(x, fed), self.final_layer_norm))
