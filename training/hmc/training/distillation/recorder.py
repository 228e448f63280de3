"""Records the outputs of layers and attentions during a forward pass, and compares those of two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hmc.training.data.batches import Batch
from hmc.training.distillation.settings import DistillSection
from hmc.training.model.transformer import Transformer


class Outputs(NamedTuple):
    """Outputs of some modules in one forward pass, in the order in which the model computes them."""

    source: list[Tensor]
    """`[B, S, d]` of every module of the encoder."""
    target: list[Tensor]
    """`[B, T, d]` of every module of the decoder."""

    def detached(self) -> Outputs:
        """Returns the outputs without their graph."""
        return Outputs([o.detach() for o in self.source], [o.detach() for o in self.target])


class Recorded(NamedTuple):
    """What a forward pass left for the comparison of layers; empty where nothing is compared."""

    hidden: Outputs
    """Outputs of layers."""
    attention: Outputs
    """Outputs of attentions, after W_O and its bias."""

    def detached(self) -> Recorded:
        """Returns the outputs without their graph."""
        return Recorded(self.hidden.detached(), self.attention.detached())


@contextmanager
def recording(model: Transformer, settings: DistillSection) -> Iterator[Recorded]:
    """Yields what `settings` compare; it is filled by the model's forward pass within the context."""
    found, hooks = Recorded(Outputs([], []), Outputs([], [])), []
    modules: list[tuple[nn.Module, list[Tensor]]] = []
    if settings.hidden:
        modules += [(layer, found.hidden.source) for layer in model.encoder_layers]
        modules += [(layer, found.hidden.target) for layer in model.decoder_layers]
    if settings.attention:
        for kind, _, attention in model.attentions():
            modules.append((attention, found.attention.source if kind == "encoder_self" else found.attention.target))
    for module, into in modules:
        hooks.append(module.register_forward_hook(_keeper(into)))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _keeper(into: list[Tensor]) -> Any:
    def keep(_module: nn.Module, _arguments: object, output: Tensor) -> None:
        into.append(output)

    return keep


def squared_difference(student: Outputs, teacher: Outputs, batch: Batch, pad_id: int) -> Tensor:
    """Returns the mean squared difference of the outputs (scalar), in fp32 or wider. The teacher gets no gradient.

    The mean is over the width and all positions without padding, then over the modules.
    """
    target = torch.zeros_like(batch.target_out, dtype=torch.bool).view(-1)
    target = target.index_fill(0, batch.real, True).view_as(batch.target_out)
    found = [
        *_differences(student.source, teacher.source, batch.source.ne(pad_id)),
        *_differences(student.target, teacher.target, target),
    ]
    return torch.stack(found).mean()


def _differences(student: Sequence[Tensor], teacher: Sequence[Tensor], real: Tensor) -> Iterator[Tensor]:
    """Outputs `[B, L, d]`, real `[B, L]` (True: no padding) → the mean squared difference of each module."""
    for own, other in zip(student, teacher, strict=True):
        wide = torch.promote_types(own.dtype, torch.float32)
        by_position = (own.to(wide) - other.detach().to(wide)).square().mean(-1)
        yield (by_position * real).sum() / real.sum()
