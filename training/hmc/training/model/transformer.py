"""The encoder-decoder Transformer exactly as Transformers computes MarianMTModel, or M2M100 with norms first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import FfnWidths, Stack
from hmc.artifact.model.heads import AttentionKind, HeadLayout
from hmc.artifact.model.layers import NONE_REMOVED, RemovedLayers
from hmc.training.model.cpu import Dropout, linear, precision_of
from hmc.training.model.layers import Attention, DecoderCache, DecoderLayer, EncoderLayer, FeedForward


class Transformer(nn.Module):
    """Encoder-decoder with one matrix of embeddings for both sides, or one for each side.

    `shared` embeds target tokens and computes logits, unless `output` does: `[vocab_size, d_model]`, or None.
    `sources` embeds source tokens that have a vocabulary of their own. It is None when `shared` embeds both sides.
    `encoder_norm` and `decoder_norm` end the stacks; they are None without norms there.
    """

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
        self.encoder = nn.ModuleList(encoder)
        self.decoder = nn.ModuleList(decoder)
        self.dropout = Dropout(dropout)
        self.output = nn.Parameter(torch.empty(arch.vocab_size, arch.d_model)) if arch.own_output else None
        if self.output is not None:
            nn.init.normal_(self.output, std=arch.d_model**-0.5)
        self.encoder_norm = norm_of(arch) if arch.stack_norms else None
        self.decoder_norm = norm_of(arch) if arch.stack_norms else None
        self.register_buffer("positions", torch.from_numpy(arch.positions()), persistent=False)
        self.register_buffer("final_logits_bias", torch.zeros(arch.vocab_size))
        self.scale = math.sqrt(arch.d_model) if arch.scale_embedding else 1.0

    def _embedding(self, size: int) -> nn.Embedding:
        """`[size, d_model]`, random; the row of the pad token is zero."""
        embedding = nn.Embedding(size, self.arch.d_model, padding_idx=self.arch.pad_id)
        nn.init.normal_(embedding.weight, std=self.arch.d_model**-0.5)
        with torch.no_grad():
            embedding.weight[self.arch.pad_id].zero_()
        return embedding

    def _without_pad(self, gradient: Tensor) -> Tensor:
        """Zeroes the gradient of the pad token's row, which the tied output layer would train.

        Decoding starts from the pad token, and other engines take its embedding to be zero.
        """
        without = gradient.clone()
        without[self.arch.pad_id].zero_()
        return without

    @property
    def tables(self) -> list[Tensor]:
        """The embeddings, and the output matrix where the model has one of its own: `[size, d_model]` each."""
        embeddings = [table.weight for table in (self.shared, self.sources) if table is not None]
        return embeddings if self.output is None else [*embeddings, self.output]

    @property
    def head_matrices(self) -> list[Tensor]:
        """The matrices whose rows (queries, keys, values) or columns (W_O) belong to heads."""
        matrices: list[Tensor] = []
        for _, _, attention in self.open_attentions():
            matrices += (attention.query.weight, attention.key_value.weight, attention.out_weight)
        return matrices

    @property
    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder's layers, first to last."""
        return cast(list[EncoderLayer], list(self.encoder))

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers, first to last."""
        return cast(list[DecoderLayer], list(self.decoder))

    def attentions(self) -> Iterator[tuple[AttentionKind, int, Attention]]:
        """Yields every attention module with its kind and layer, in the order of `KINDS`."""
        yield from (("encoder_self", i, layer.self_attn) for i, layer in enumerate(self.encoder_layers))
        yield from (("decoder_self", i, layer.self_attn) for i, layer in enumerate(self.decoder_layers))
        yield from (("cross", i, layer.encoder_attn) for i, layer in enumerate(self.decoder_layers))

    def open_attentions(self) -> list[tuple[AttentionKind, int, Attention]]:
        """Those of `attentions` that have heads."""
        return [row for row in self.attentions() if row[2].heads]

    def feed_forwards(self) -> Iterator[tuple[Stack, int, FeedForward]]:
        """Yields every feed-forward module with its stack and layer, the encoder's first."""
        yield from (("encoder", i, layer.ffn) for i, layer in enumerate(self.encoder_layers))
        yield from (("decoder", i, layer.ffn) for i, layer in enumerate(self.decoder_layers))

    def embed(self, ids: Tensor, start: int = 0) -> Tensor:
        """Target ids `[B, T]` → `[B, T, d_model]`; the first token is at position `start`. No dropout."""
        return self._placed(self.shared, ids, start)

    def embed_source(self, ids: Tensor) -> Tensor:
        """Source ids `[B, S]` → `[B, S, d_model]`. No dropout."""
        return self._placed(self.shared if self.sources is None else self.sources, ids, 0)

    def _placed(self, table: nn.Embedding, ids: Tensor, start: int) -> Tensor:
        rows: Tensor = table(ids)
        return rows * self.scale + self.positions[start : start + ids.size(1)]

    def layers(self) -> Iterator[tuple[Stack, int, EncoderLayer | DecoderLayer]]:
        """Yields every layer with its stack and number, the encoder's first."""
        yield from (("encoder", i, layer) for i, layer in enumerate(self.encoder_layers))
        yield from (("decoder", i, layer) for i, layer in enumerate(self.decoder_layers))

    def encode(self, source: Tensor, padded: bool | None = None) -> tuple[Tensor, Tensor | None]:
        """source `[B, S]`, padded with pad_id → states `[B, S, d_model]` and mask `[B, 1, 1, S]` (None: no padding).

        padded: whether `source` holds padding. None: it is computed from the tensor, which makes a GPU wait.
        """
        real = source.ne(self.arch.pad_id)
        padded = not bool(real.all()) if padded is None else padded
        mask = real[:, None, None, :] if padded else None
        x = self.dropout(self.embed_source(source))
        for layer in self.encoder_layers:
            x = layer(x, mask)
        return (x if self.encoder_norm is None else self.encoder_norm(x)), mask

    def forward(self, source: Tensor, target_in: Tensor, source_padded: bool | None = None) -> Tensor:
        """Teacher forcing: source `[B, S]`, target_in `[B, T]` → decoder states `[B, T, d_model]` (see `logits`).

        source_padded: as `padded` of `encode`.
        """
        memory, mask = self.encode(source, source_padded)
        return self.decode(memory, mask, target_in)

    def decode(self, memory: Tensor, mask: Tensor | None, target_in: Tensor) -> Tensor:
        """Encoder states `[B, S, d_model]`, source mask `[B, 1, 1, S]`, target_in `[B, T]` → decoder states
        `[B, T, d_model]`."""
        memory = memory.to(precision_of(memory))
        x = self.dropout(self.embed(target_in))
        for layer in self.decoder_layers:
            own = layer.own_keys(x)
            cross = layer.encoder_attn.project(memory) if layer.encoder_attn.heads else None
            x = layer(x, own, cross, mask)
        return x if self.decoder_norm is None else self.decoder_norm(x)

    @property
    def output_weight(self) -> Tensor:
        """The matrix of the output projection, `[V, d_model]`."""
        return self.shared.weight if self.output is None else self.output

    def logits(self, states: Tensor) -> Tensor:
        """states `[…, d_model]` → `[…, V]` through the output projection and final_logits_bias."""
        return linear(states, self.output_weight, self.final_logits_bias)

    def start_cache(self, memory: Tensor) -> DecoderCache:
        """Encoder states `[B, S, d_model]` → a cache with the cross keys and values of every layer."""
        cross = [
            layer.encoder_attn.project(memory) if layer.encoder_attn.heads else None for layer in self.decoder_layers
        ]
        return DecoderCache(own=[None] * len(self.decoder), cross=cross)

    def step(self, tokens: Tensor, cache: DecoderCache, mask: Tensor | None) -> Tensor:
        """One decoder step: tokens `[B, 1]`, source mask `[B, 1, 1, S]` → logits `[B, V]`. Extends `cache`."""
        x = self.dropout(self.embed(tokens, cache.position))
        for index, layer in enumerate(self.decoder_layers):
            own = layer.own_keys(x)
            past = cache.own[index]
            if own is not None and past is not None:
                own = past.then(own)
            cache.own[index] = own
            x = layer(x, own, cache.cross[index], mask)
        cache.position += 1
        x = x[:, -1]
        return self.logits(x if self.decoder_norm is None else self.decoder_norm(x))


def norm_of(arch: Architecture) -> nn.LayerNorm:
    """A new norm of states `[…, d_model]`, as every sub-layer has one."""
    return nn.LayerNorm(arch.d_model)


def build_transformer(
    arch: Architecture,
    layout: HeadLayout | None = None,
    ffn: FfnWidths | None = None,
    removed: RemovedLayers = NONE_REMOVED,
    *,
    dropout: float = 0.0,
) -> Transformer:
    """Returns a randomly initialised model with the heads of `layout` and the neurons of `ffn` (default: all).

    Layers in `removed` do nothing, and their parameters are not trained.
    """
    layout = layout or arch.full_layout()
    widths = ffn or arch.full_ffn()
    norm = partial(norm_of, arch)

    def attention(kind: AttentionKind, layer: int) -> Attention:
        return Attention(d_model=arch.d_model, heads=len(layout[kind][layer]), head_dim=arch.head_dim, of=arch.heads)

    def feed_forward(stack: Stack, layer: int) -> FeedForward:
        return FeedForward(arch.d_model, widths[stack][layer], arch.activation, arch.ffn_dim)

    encoder = [
        EncoderLayer(attention("encoder_self", i), feed_forward("encoder", i), norm, dropout, pre_norm=arch.pre_norm)
        for i in range(arch.encoder_layers)
    ]
    decoder = [
        DecoderLayer(
            attention("decoder_self", i),
            attention("cross", i),
            feed_forward("decoder", i),
            norm,
            dropout,
            pre_norm=arch.pre_norm,
        )
        for i in range(arch.decoder_layers)
    ]
    model = Transformer(arch, encoder, decoder, dropout)
    for stack, number, layer in model.layers():
        if number in removed[stack]:
            layer.removed = True
            layer.requires_grad_(False)
    return model
