"""Removing closed heads, neurons and layers from the weights, and restoring heads and neurons as zeros.

What a head or a neuron is in the weights is in `hmc.artifact.model.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.weights import Tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons, Stack
from hmc.artifact.model.heads import KINDS, HeadLayout, HeadOrder
from hmc.artifact.model.layers import (
    NONE_REMOVED,
    RemovedLayers,
    SubLayerSpec,
    layer_name,
    layer_of,
    stack_of,
)


def slim_tensors(
    tensors: Tensors, arch: Architecture, current: HeadLayout, target: HeadLayout, order: HeadOrder | None = None
) -> Tensors:
    """Tensors of layout `current` → tensors of layout `target`, which must be contained in it.

    A layer that keeps all heads keeps its arrays. A layer that keeps some heads gets sliced copies. A layer that keeps
    no head has only the bias of W_O and its norm. order: the order of the heads of `current` in `tensors`, which they
    keep. None: by their numbers. Raises InvalidRequestError that names a head which `current` lacks.
    """
    current.restrict(target)
    rows: HeadOrder = order or current
    slim = dict(tensors)
    for kind in KINDS:
        for layer, kept in enumerate(target[kind]):
            if len(kept) < len(current[kind][layer]):
                positions = [place for place, head in enumerate(rows[kind][layer]) if head in kept]
                _keep(slim, arch.attention(kind, layer), positions)
    return slim


def reordered_heads(tensors: Tensors, arch: Architecture, layout: HeadLayout, order: HeadOrder) -> Tensors:
    """Tensors of a layout with the heads of each layer in another order, which computes the same up to rounding.

    A layer whose order does not change keeps its arrays.
    """
    reordered = dict(tensors)
    for kind in KINDS:
        for layer, present in enumerate(layout[kind]):
            positions = [present.index(head) for head in order[kind][layer]]
            if positions != sorted(positions):
                _keep(reordered, arch.attention(kind, layer), positions)
    return reordered


def slim_ffn(tensors: Tensors, arch: Architecture, kept: Neurons) -> Tensors:
    """Removes all neurons but `kept`. A layer that keeps no neuron has only the bias of `fc2` and its norm."""
    slim = dict(tensors)
    for stack in STACKS:
        for layer, positions in enumerate(kept[stack]):
            sublayer = arch.feed_forward(stack, layer)
            matrix = tensors.get(sublayer.output.weight)
            if matrix is not None and len(positions) < matrix.shape[1]:
                _keep(slim, sublayer, positions)
    return slim


def _keep(tensors: Tensors, sublayer: SubLayerSpec, units: Sequence[int]) -> None:
    """Cuts the tensors of a sub-layer down to the units at these positions. Without any, it deletes them."""
    features = sublayer.features(units)
    for name, axis in sublayer.owned:
        if name not in tensors:
            raise InvalidRequestError(f"{name}: the tensor is missing, so no head or neuron can be removed from it")
        if len(features):
            tensors[name] = np.ascontiguousarray(np.take(tensors[name], features, axis=axis))
        else:
            del tensors[name]


def masked_tensors(tensors: Tensors, arch: Architecture, current: HeadLayout, target: HeadLayout) -> Tensors:
    """Sets the W_O columns of heads outside `target` to zero: gate g_h = 0. Shapes do not change."""
    kept = current.restrict(target)
    masked = dict(tensors)
    for kind in KINDS:
        for layer, positions in enumerate(kept[kind]):
            if current[kind][layer]:
                attention = arch.attention(kind, layer)
                name = attention.output.weight
                keep = np.zeros(tensors[name].shape[1], bool)
                keep[attention.features(positions)] = True
                masked[name] = np.where(keep[None, :], tensors[name], np.float32(0))
    return masked


def restored_tensors(tensors: Tensors, arch: Architecture, current: HeadLayout) -> Tensors:
    """Tensors of layout `current` → tensors of the full layout that compute the same function.

    A closed head comes back at its original index with zero W_Q, W_K, W_V, W_O and biases: its output is zero.
    """
    full = dict(tensors)
    for kind in KINDS:
        for layer, indices in enumerate(current[kind]):
            if len(indices) < arch.heads:
                _spread(full, arch.attention(kind, layer), indices, arch.heads, arch.d_model)
    return full


def padded_ffn(tensors: Tensors, arch: Architecture, widths: FfnWidths) -> tuple[Tensors, int]:
    """Gives every layer as many neurons as the widest has. Returns the tensors, and that number (at least 1).

    The added neurons have zero weights and come last. Every activation function is 0 at 0, so the model computes the
    same.
    """
    width = max(widths.widest, 1)
    padded = dict(tensors)
    for stack, layer, own_width in widths.layers():
        if own_width < width:
            _spread(padded, arch.feed_forward(stack, layer), range(own_width), width, arch.d_model)
    return padded, width


def _spread(tensors: Tensors, sublayer: SubLayerSpec, places: Sequence[int], units: int, d_model: int) -> None:
    """Puts the units that a sub-layer has to these of `units` places, and zeros to all others."""
    shapes = sublayer.shapes(units, d_model)
    features = sublayer.features(places)
    for name, axis in sublayer.owned:
        whole = np.zeros(shapes[name], np.float32)
        if len(features):
            whole[(slice(None),) * axis + (features,)] = tensors[name]
        tensors[name] = whole


def slim_layers(tensors: Tensors, removed: RemovedLayers) -> Tensors:
    """Removes all tensors of removed layers. Such a layer then returns its input."""
    return {name: tensor for name, tensor in tensors.items() if not removed.has_tensor(name)}


def slimmed(checkpoint: Checkpoint, layout: HeadLayout, kept: Neurons, removed: RemovedLayers) -> Checkpoint:
    """The checkpoint with these heads and neurons alone and without the removed layers. Scores of heads are left out,
    because other heads make them wrong."""
    arch = checkpoint.architecture
    tensors = slim_tensors(checkpoint.tensors, arch, checkpoint.layout, layout)
    tensors = slim_layers(slim_ffn(tensors, arch, kept), removed)
    config = checkpoint.config.model_copy(
        update={"head_layout": layout.to_json(), "ffn_widths": FfnWidths.from_neurons(kept), "removed_layers": removed}
    )
    return replace(checkpoint.without_scores(), config=config, tensors=tensors)


def renumbered(checkpoint: Checkpoint) -> Checkpoint:
    """The same model without its removed layers: an architecture with fewer layers, which are numbered anew.

    Scores of heads are left out, because they name layers by their original numbers. A checkpoint without removed
    layers is returned as it is.
    """
    removed = checkpoint.removed_layers
    arch = checkpoint.architecture
    if not removed:
        return checkpoint
    kept: dict[Stack, list[int]] = {}
    neurons = {}
    for stack in STACKS:
        kept[stack] = sorted(set(range(arch.depth(stack))) - set(removed[stack]))
        neurons[stack] = tuple(checkpoint.ffn_widths[stack][layer] for layer in kept[stack])
    widths = FfnWidths(**neurons)
    rows = {}
    for kind in KINDS:
        rows[kind] = tuple(checkpoint.layout[kind][layer] for layer in kept[stack_of(kind)])
    layout = HeadLayout(**rows)
    shorter = arch.model_copy(update={"encoder_layers": len(kept["encoder"]), "decoder_layers": len(kept["decoder"])})

    def renamed(stack: Stack, number: int, part: str) -> str:
        return f"{layer_name(stack, kept[stack].index(number))}.{part}"

    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        owner = layer_of(name)
        tensors[renamed(*owner) if owner else name] = tensor
    config = checkpoint.config.model_copy(
        update={
            "architecture": shorter,
            "head_layout": layout.to_json(),
            "ffn_widths": None if widths == shorter.full_ffn() else widths,
            "removed_layers": NONE_REMOVED,
        }
    )
    return replace(checkpoint.without_scores(), config=config, tensors=tensors)
