"""Removing closed heads, neurons and layers from the weights, and restoring heads and neurons as zeros.

A head is rows of W_Q, W_K and W_V and columns of W_O (Voita et al. 2019, equation 3); a neuron is a row of `fc1` and a
column of `fc2`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hmc.artifact.checkpoint.checkpoint import Checkpoint, Tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.model.architecture import Architecture, attention_module, tensor_shapes
from hmc.artifact.model.ffn import STACKS, FfnWidths, Neurons
from hmc.artifact.model.heads import KINDS, HeadLayout
from hmc.artifact.model.layers import NONE_REMOVED, RemovedLayers


def _features(positions: Sequence[int], head_dim: int) -> np.ndarray:
    """Feature indices `[len(positions) · head_dim]` of the heads at `positions`."""
    return (np.asarray(positions, np.int64)[:, None] * head_dim + np.arange(head_dim)).reshape(-1)


def slim_tensors(tensors: Tensors, arch: Architecture, current: HeadLayout, target: HeadLayout) -> Tensors:
    """Tensors of layout `current` → tensors of layout `target`, which must be contained in it.

    A layer that keeps all heads keeps its arrays. A layer that keeps some gets sliced copies. A layer that keeps none
    has only `out_proj.bias` and its layer norm. Raises InvalidRequestError that names a head which `current` lacks.
    """
    kept = current.restrict(target)
    slim = dict(tensors)
    for kind in KINDS:
        stack, module = attention_module(kind)
        for layer, positions in enumerate(kept[kind]):
            if len(positions) == len(current[kind][layer]):
                continue
            prefix = f"{stack}.layers.{layer}.{module}"
            features = _features(positions, arch.head_dim)
            for projection in ("q_proj", "k_proj", "v_proj"):
                for part in ("weight", "bias"):
                    _slice(slim, f"{prefix}.{projection}.{part}", features, 0)
            _slice(slim, f"{prefix}.out_proj.weight", features, 1)
    return slim


def _slice(tensors: Tensors, name: str, features: np.ndarray, axis: int) -> None:
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
        stack, module = attention_module(kind)
        for layer, positions in enumerate(kept[kind]):
            if current[kind][layer]:
                name = f"{stack}.layers.{layer}.{module}.out_proj.weight"
                keep = np.zeros(tensors[name].shape[1], bool)
                keep[_features(positions, arch.head_dim)] = True
                masked[name] = np.where(keep[None, :], tensors[name], np.float32(0))
    return masked


def restored_tensors(tensors: Tensors, arch: Architecture, current: HeadLayout) -> Tensors:
    """Tensors of layout `current` → tensors of the full layout that compute the same function.

    A closed head comes back at its original index with zero W_Q, W_K, W_V, W_O and biases: its output is zero.
    """
    full = dict(tensors)
    shapes = tensor_shapes(arch, arch.full_layout())
    for kind in KINDS:
        stack, module = attention_module(kind)
        for layer, indices in enumerate(current[kind]):
            if len(indices) == arch.heads:
                continue
            prefix, features = f"{stack}.layers.{layer}.{module}", _features(indices, arch.head_dim)
            names = [f"{prefix}.{p}_proj.{part}" for p in "qkv" for part in ("weight", "bias")]
            for name in [*names, f"{prefix}.out_proj.weight"]:
                restored = np.zeros(shapes[name], np.float32)
                if indices and name.endswith("out_proj.weight"):
                    restored[:, features] = tensors[name]
                elif indices:
                    restored[features] = tensors[name]
                full[name] = restored
    return full


def slim_ffn(tensors: Tensors, kept: Neurons) -> Tensors:
    """Removes all neurons but `kept`. A layer that keeps none has only `fc2.bias`."""
    slim = dict(tensors)
    for prefix, positions in _feed_forwards(kept):
        if len(positions) < len(tensors.get(f"{prefix}.fc1.bias", ())):
            for name, axis in (("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)):
                _slice(slim, f"{prefix}.{name}", positions, axis)
    return slim


def masked_ffn(tensors: Tensors, kept: Neurons) -> Tensors:
    """Sets the `fc2` columns of all neurons but `kept` to zero, which closes their gates. Shapes do not change."""
    masked = dict(tensors)
    for prefix, positions in _feed_forwards(kept):
        if (name := f"{prefix}.fc2.weight") in tensors:
            keep = np.zeros(tensors[name].shape[1], bool)
            keep[positions] = True
            masked[name] = np.where(keep[None, :], tensors[name], np.float32(0))
    return masked


def padded_ffn(tensors: Tensors, widths: FfnWidths) -> tuple[Tensors, int]:
    """Gives every layer as many neurons as the widest has. Returns the tensors, and that number (at least 1).

    The added neurons have zero weights and come last. Every activation function is 0 at 0, so the model computes the
    same.
    """
    width, padded = max(widths.widest, 1), dict(tensors)
    for stack, layer, there in widths.layers():
        if there == width:
            continue
        prefix = f"{stack}.layers.{layer}"
        d_model = len(tensors[f"{prefix}.fc2.bias"])
        for name, shape in (("fc1.weight", (width, d_model)), ("fc1.bias", (width,)), ("fc2.weight", (d_model, width))):
            whole = np.zeros(shape, np.float32)
            if there:
                own = tensors[f"{prefix}.{name}"]
                whole[tuple(slice(n) for n in own.shape)] = own
            padded[f"{prefix}.{name}"] = whole
    return padded, width


def slim_layers(tensors: Tensors, removed: RemovedLayers) -> Tensors:
    """Removes all tensors of removed layers, whose output is then their input."""
    return {name: tensor for name, tensor in tensors.items() if not removed.has_tensor(name)}


def renumbered(checkpoint: Checkpoint) -> Checkpoint:
    """The same model without its removed layers: an architecture with fewer layers, which are numbered anew.

    Scores of heads are left out, because they name layers by their original numbers. A checkpoint without removed
    layers is returned as it is.
    """
    removed, arch = checkpoint.removed_layers, checkpoint.architecture
    if not removed:
        return checkpoint
    kept: dict[str, list[int]] = {
        stack: [layer for layer in range(len(arch.full_ffn()[stack])) if layer not in removed[stack]]
        for stack in STACKS
    }
    rows = {kind: [checkpoint.layout[kind][layer] for layer in kept[attention_module(kind)[0]]] for kind in KINDS}
    layout = HeadLayout.from_json({kind: [list(row) for row in found] for kind, found in rows.items()})
    widths = FfnWidths(
        **{stack: tuple(checkpoint.ffn_widths[stack][layer] for layer in kept[stack]) for stack in STACKS}
    )
    shorter = arch.model_copy(update={"encoder_layers": len(kept["encoder"]), "decoder_layers": len(kept["decoder"])})
    tensors = {}
    for name, tensor in checkpoint.tensors.items():
        stack, _, rest = name.partition(".layers.")
        if rest and stack in kept:
            number, _, part = rest.partition(".")
            tensors[f"{stack}.layers.{kept[stack].index(int(number))}.{part}"] = tensor
        else:
            tensors[name] = tensor
    config = checkpoint.config.model_copy(
        update={
            "architecture": shorter,
            "head_layout": layout.to_json(),
            "ffn_widths": None if widths == shorter.full_ffn() else widths,
            "removed_layers": NONE_REMOVED,
        }
    )
    return replace(checkpoint, config=config, tensors=tensors, gates=None, importance=None)


def _feed_forwards(kept: Neurons) -> Iterator[tuple[str, np.ndarray]]:
    """Name of every layer of `kept`, and its positions as an array."""
    for stack in STACKS:
        for layer, positions in enumerate(kept[stack]):
            yield f"{stack}.layers.{layer}", np.asarray(positions, np.int64)
