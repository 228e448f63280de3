"""Regimes of a whole model: which heads and neurons are open, and which weights are trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from hmc.artifact.model.ffn import Neurons
from hmc.artifact.model.heads import HeadLayout
from hmc.artifact.model.layers import RemovedLayers
from hmc.training.data.batches import to_device
from hmc.training.model.gates import ClosedGate, FixedMask, OpenGate, SelectedHeads
from hmc.training.model.layers import Attention, FeedForward, Layer
from hmc.training.model.transformer import Transformer

Gated = Attention | FeedForward | Layer
"""A module with a gate."""


def gated_modules(model: Transformer) -> Iterator[Gated]:
    """Yields every module that has a gate: attentions, then feed-forward sub-layers, then layers."""
    yield from (attention for *_, attention in model.attentions())
    yield from (ffn for *_, ffn in model.feed_forwards())
    yield from (layer for *_, layer in model.layers())


@contextmanager
def restoring_gates(modules: Iterable[Gated]) -> Iterator[None]:
    """A context at whose end the modules have their former gates again."""
    former = [(module, module.gate) for module in modules]
    try:
        yield
    finally:
        for module, gate in former:
            module.gate = gate


def open_gates(model: Transformer) -> None:
    """Opens every head and every neuron: removes all gates."""
    for module in gated_modules(model):
        module.gate = OpenGate()


def mask_to_layout(model: Transformer, current: HeadLayout, target: HeadLayout) -> None:
    """Masks the heads of a model of layout `current` that are not in `target`; the heads in `target` are open.

    The masks go to the model's device in one copy, for which a GPU does not wait. So every update can set new masks.
    """
    kept = current.restrict(target)
    attentions = model.open_attentions()
    if not attentions:
        return
    sizes = [attention.heads for *_, attention in attentions]
    masks = torch.cat([position_mask(kept[kind][layer], own.heads).float() for kind, layer, own in attentions])
    parts = to_device(masks, model.shared.weight.device).split_with_sizes(sizes)
    for (*_, attention), mask in zip(attentions, parts, strict=True):
        attention.gate = FixedMask(mask)


def select_layout(model: Transformer, current: HeadLayout, target: HeadLayout) -> None:
    """Leaves out the heads of a model of layout `current` that are not in `target`.

    On a CPU they are not computed; elsewhere they are masked (`mask_to_layout`), because a GPU would wait for the
    indices of the selected heads. Outputs and gradients are equal up to rounding. If no head is left, all heads are
    masked, so that every weight has a gradient, for which several processes wait.
    """
    if model.shared.weight.device.type != "cpu":
        mask_to_layout(model, current, target)
        return
    kept = current.restrict(target)
    for kind, layer, attention in model.attentions():
        some = kept[kind][layer]
        if len(some) == attention.heads:
            attention.gate = OpenGate()
        elif some:
            attention.gate = SelectedHeads(some, attention.heads, attention.head_dim)
        else:
            attention.gate = FixedMask(torch.zeros(attention.heads))


def mask_neurons(model: Transformer, kept: Neurons) -> None:
    """Masks every feed-forward neuron that is not in `kept`; the neurons in `kept` are open."""
    for stack, layer, ffn in model.feed_forwards():
        if ffn.neurons:
            mask = position_mask(kept[stack][layer], ffn.neurons)
            ffn.gate = FixedMask(to_device(mask, ffn.fc2.bias.device))


def remove_layers(model: Transformer, removed: RemovedLayers) -> None:
    """Makes the layers in `removed` do nothing, and opens all others."""
    for stack, number, layer in model.layers():
        layer.gate = ClosedGate() if number in removed[stack] else OpenGate()


def position_mask(positions: Sequence[int], width: int) -> Tensor:
    """`[width]` booleans, True at `positions`."""
    return torch.zeros(width, dtype=torch.bool).index_fill_(0, torch.tensor(positions, dtype=torch.long), True)


def freeze(model: Transformer, part: Literal["encoder", "decoder", "matrices"] | None) -> list[nn.Parameter]:
    """Freezes a stack and its embeddings (Voita et al. 2019, section 6.2); returns the parameters left to train.

    A stack is its layers and the norm that ends it. Embeddings shared by both stacks are frozen with either. When
    sources have their own embeddings, these belong to the encoder. An output matrix of its own belongs to the decoder,
    whose layers are self-attention, cross-attention and feed-forward. `matrices` freezes everything but layer norms and
    biases. None freezes nothing.
    """
    frozen: list[nn.Parameter] = []
    if part == "matrices":
        frozen = [p for p in model.parameters() if p.dim() > 1]
    elif part is not None:
        embeddings = model.shared if model.sources is None or part == "decoder" else model.sources
        norm = model.encoder_norm if part == "encoder" else model.decoder_norm
        for module in filter(None, (embeddings, getattr(model, part), norm)):
            frozen += module.parameters()
        if part == "decoder" and model.output is not None:
            frozen.append(model.output)
    for parameter in frozen:
        parameter.requires_grad_(False)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
