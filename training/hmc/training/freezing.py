"""Keeping one stack's weights as they are while the rest is trained."""

from __future__ import annotations

from typing import Literal

from torch import nn

from hmc.training.transformer import Transformer


def freeze(model: Transformer, stack: Literal["encoder", "decoder"] | None) -> list[nn.Parameter]:
    """Freezes a stack and the embeddings; returns the parameters that are left to train.

    Both stacks share the embeddings; where sources have their own, these are the encoder's. The decoder's part is its
    self-attention, cross-attention and feed-forward layers. (Voita et al. 2019, section 6.2.)
    """
    frozen: list[nn.Parameter] = []
    if stack is not None:
        shared = [model.shared] if model.sources is None or stack == "decoder" else [model.sources]
        frozen = [p for part in (*shared, getattr(model, stack)) for p in part.parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
