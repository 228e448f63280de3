"""Keeping one stack's weights as they are while the rest is trained."""

from __future__ import annotations

from typing import Literal

from torch import nn

from hmc.training.transformer import Transformer


def freeze(model: Transformer, stack: Literal["encoder", "decoder"] | None) -> list[nn.Parameter]:
    """Freezes a stack and the embeddings (which both stacks share); returns the parameters that are left to train.

    The decoder's part is its self-attention, cross-attention and feed-forward layers. (Voita et al. 2019, section 6.2.)
    """
    frozen: list[nn.Parameter] = []
    if stack is not None:
        frozen = [*model.shared.parameters(), *getattr(model, stack).parameters()]
    for parameter in frozen:
        parameter.requires_grad_(False)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
