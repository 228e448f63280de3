"""The Marian/Vaswani encoder-decoder, as Hugging Face MarianMTModel computes it: post-norm, tied embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hmc.artifact.architecture import Architecture, sinusoidal_positions
from hmc.artifact.ffn import FfnWidths, Stack
from hmc.artifact.heads import HeadLayout, Kind
from hmc.training.attention import Attention
from hmc.training.dropout import Dropout
from hmc.training.gates import OpenGate
from hmc.training.linear import Linear, linear, precision_of
from hmc.training.scaled_dot_product import KeyValues

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "swish": functional.silu,
    "gelu": functional.gelu,
}


class FeedForward(nn.Module):
    """Position-wise feed-forward sub-layer `[…, d_model]` → `[…, d_model]`, with a gate on every neuron.

    `neurons` may be 0: then only the bias of `fc2` remains, and the empty matrices are not trained.
    """

    gate: OpenGate

    def __init__(self, d_model: int, neurons: int, activation: str) -> None:
        super().__init__()
        self.neurons = neurons
        width = neurons or 1  # PyTorch warns of an empty matrix that is initialised
        self.fc1, self.fc2 = Linear(d_model, width), Linear(width, d_model)
        self.activation = ACTIVATIONS[activation]
        self.gate = OpenGate()
        for part in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(part.weight)
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


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each followed by residual + layer norm."""

    def __init__(self, self_attn: Attention, ffn: FeedForward, d_model: int, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.ffn, self.dropout = self_attn, ffn, Dropout(dropout)
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x `[B, S, d_model]`, mask `[B, 1, 1, S]` True on real tokens."""
        states = x.to(precision_of(x))  # converted once for all its products
        own = self.self_attn.project(states) if self.self_attn.heads else None
        x = self.self_attn_layer_norm(self.dropout.add(x, self.self_attn(states, own, mask)))
        return self.final_layer_norm(self.dropout.add(x, self.ffn(x)))


@dataclass
class DecoderCache:
    """Keys and values per decoder layer: `own` grows by one position a step, `cross` is computed once."""

    own: list[KeyValues | None] = field(default_factory=list)
    cross: list[KeyValues | None] = field(default_factory=list)
    position: int = 0

    def select(self, rows: Tensor) -> None:
        """Reorders every cache to `rows` (indices into the batch)."""
        for caches in (self.own, self.cross):
            for layer, entry in enumerate(caches):
                if entry is not None:
                    caches[layer] = entry.select(rows)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and feed-forward, each followed by residual + layer norm."""

    def __init__(
        self, self_attn: Attention, encoder_attn: Attention, ffn: FeedForward, d_model: int, dropout: float
    ) -> None:
        super().__init__()
        self.self_attn, self.encoder_attn, self.ffn, self.dropout = self_attn, encoder_attn, ffn, Dropout(dropout)
        self.self_attn_layer_norm, self.encoder_attn_layer_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.final_layer_norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, own: KeyValues | None, cross: KeyValues | None, mask: Tensor | None) -> Tensor:
        """x `[B, T, d_model]`; with T = 1 `own` holds all earlier positions, else attention is causal."""
        causal = x.size(1) > 1
        x = self.self_attn_layer_norm(self.dropout.add(x, self.self_attn(x, own, None, causal=causal)))
        x = self.encoder_attn_layer_norm(self.dropout.add(x, self.encoder_attn(x, cross, mask)))
        return self.final_layer_norm(self.dropout.add(x, self.ffn(x)))


class Transformer(nn.Module):
    """Encoder-decoder with one shared, tied embedding matrix, or one for each side."""

    positions: Tensor
    final_logits_bias: Tensor

    def __init__(
        self, arch: Architecture, encoder: Sequence[EncoderLayer], decoder: Sequence[DecoderLayer], dropout: float
    ) -> None:
        super().__init__()
        self.arch = arch
        self.shared = self._embedding(arch.vocab_size)
        self.shared.weight.register_hook(self._without_pad)  # type: ignore[no-untyped-call]
        self.sources = None if arch.source_vocab_size is None else self._embedding(arch.source_vocab_size)
        self.encoder, self.decoder, self.dropout = nn.ModuleList(encoder), nn.ModuleList(decoder), Dropout(dropout)
        self.register_buffer(
            "positions", torch.from_numpy(sinusoidal_positions(arch.max_positions, arch.d_model)), persistent=False
        )
        self.register_buffer("final_logits_bias", torch.zeros(arch.vocab_size))
        self.scale = math.sqrt(arch.d_model) if arch.scale_embedding else 1.0

    def _embedding(self, size: int) -> nn.Embedding:
        """`[size, d_model]`, random but for pad's row, which stays zero."""
        made = nn.Embedding(size, self.arch.d_model, padding_idx=self.arch.pad_id)
        nn.init.normal_(made.weight, std=self.arch.d_model**-0.5)
        with torch.no_grad():
            made.weight[self.arch.pad_id].zero_()
        return made

    def _without_pad(self, gradient: Tensor) -> Tensor:
        """The tied output layer would train pad's row, and other engines start the decoder from zeros."""
        return gradient.index_fill(0, torch.tensor(self.arch.pad_id, device=gradient.device), 0.0)

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder's layers, first to last."""
        return cast(list[EncoderLayer], list(self.encoder))

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers, first to last."""
        return cast(list[DecoderLayer], list(self.decoder))

    def attentions(self) -> Iterator[tuple[Kind, int, Attention]]:
        """Every attention module with its kind and layer, in the order of `KINDS`."""
        yield from (("encoder_self", i, layer.self_attn) for i, layer in enumerate(self.encoder_layers))
        yield from (("decoder_self", i, layer.self_attn) for i, layer in enumerate(self.decoder_layers))
        yield from (("cross", i, layer.encoder_attn) for i, layer in enumerate(self.decoder_layers))

    def feed_forwards(self) -> Iterator[tuple[Stack, int, FeedForward]]:
        """Every feed-forward module with its stack and layer, the encoder's first."""
        yield from (("encoder", i, layer.ffn) for i, layer in enumerate(self.encoder_layers))
        yield from (("decoder", i, layer.ffn) for i, layer in enumerate(self.decoder_layers))

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Target ids `[B, T]` → `[B, T, d_model]` with positions from `start`; no dropout."""
        return self._placed(self.shared, ids, start)

    def embed_source(self, ids: Tensor) -> Tensor:
        """Source ids `[B, S]` → `[B, S, d_model]` with positions; no dropout."""
        return self._placed(self.shared if self.sources is None else self.sources, ids, 0)

    def _placed(self, table: nn.Embedding, ids: Tensor, start: int) -> Tensor:
        rows: Tensor = table(ids)
        return rows * self.scale + self.positions[start : start + ids.size(1)]

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor | None]:
        """source `[B, S]` padded with pad_id → states `[B, S, d_model]` and mask `[B, 1, 1, S]` (None: no padding)."""
        real = source.ne(self.arch.pad_id)
        mask = None if bool(real.all()) else real[:, None, None, :]
        x = self.dropout(self.embed_source(source))
        for layer in self.encoder_layers:
            x = layer(x, mask)
        return x, mask

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Teacher forcing: source `[B, S]`, target_in `[B, T]` → decoder states `[B, T, d_model]` (see `logits`)."""
        memory, mask = self.encode(source)
        memory, x = memory.to(precision_of(memory)), self.dropout(self.embed(target_in))
        for layer in self.decoder_layers:
            own = layer.self_attn.project(x) if layer.self_attn.heads else None
            cross = layer.encoder_attn.project(memory) if layer.encoder_attn.heads else None
            x = layer(x, own, cross, mask)
        return x

    def logits(self, states: Tensor) -> Tensor:
        """states `[…, d_model]` → `[…, V]` through the tied embedding and final_logits_bias."""
        return linear(states, self.shared.weight, self.final_logits_bias)

    def start_cache(self, memory: Tensor) -> DecoderCache:
        """Cross keys and values of every layer, projected once; empty self-attention caches."""
        cross = [
            layer.encoder_attn.project(memory) if layer.encoder_attn.heads else None for layer in self.decoder_layers
        ]
        return DecoderCache(own=[None] * len(self.decoder), cross=cross)

    def step(self, tokens: Tensor, cache: DecoderCache, mask: Tensor | None) -> Tensor:
        """One decoder step: tokens `[B, 1]` → logits `[B, V]`; `cache` gains one position."""
        x = self.dropout(self.embed(tokens, cache.position))
        for index, layer in enumerate(self.decoder_layers):
            own = layer.self_attn.project(x) if layer.self_attn.heads else None
            past = cache.own[index]
            if own is not None and past is not None:
                own = past.then(own)
            cache.own[index] = own
            x = layer(x, own, cache.cross[index], mask)
        cache.position += 1
        return self.logits(x[:, -1])


def build_transformer(
    arch: Architecture, layout: HeadLayout | None = None, ffn: FfnWidths | None = None, *, dropout: float = 0.0
) -> Transformer:
    """A randomly initialised model with the given heads and feed-forward neurons (default: all of the architecture)."""
    layout, widths = layout or arch.full_layout(), ffn or arch.full_ffn()

    def attention(kind: Kind, layer: int) -> Attention:
        return Attention(d_model=arch.d_model, heads=len(layout[kind][layer]), head_dim=arch.head_dim)

    def feed_forward(stack: Stack, layer: int) -> FeedForward:
        return FeedForward(arch.d_model, widths[stack][layer], arch.activation)

    encoder = [
        EncoderLayer(attention("encoder_self", i), feed_forward("encoder", i), arch.d_model, dropout)
        for i in range(arch.encoder_layers)
    ]
    decoder = [
        DecoderLayer(
            attention("decoder_self", i), attention("cross", i), feed_forward("decoder", i), arch.d_model, dropout
        )
        for i in range(arch.decoder_layers)
    ]
    return Transformer(arch, encoder, decoder, dropout)
