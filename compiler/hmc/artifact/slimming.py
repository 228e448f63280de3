"""Removing closed heads and neurons from the weights, and bringing them back as zeros: rows of W_Q, W_K, W_V and
columns of W_O (Voita et al. 2019, eq. 3), rows of `fc1` and columns of `fc2`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from hmc.artifact.architecture import Architecture, attention_module, tensor_shapes
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.ffn import STACKS, FfnWidths, Neurons
from hmc.artifact.heads import KINDS, HeadLayout


def _features(positions: Sequence[int], head_dim: int) -> np.ndarray:
    """Feature indices `[len(positions) · head_dim]` of the heads at `positions`."""
    return (np.asarray(positions, np.int64)[:, None] * head_dim + np.arange(head_dim)).reshape(-1)


def slim_tensors(tensors: Tensors, arch: Architecture, current: HeadLayout, target: HeadLayout) -> Tensors:
    """Tensors of layout `current` → tensors of layout `target`, which must be contained in it.

    Cases per layer: all heads stay → the same arrays; some → sliced copies; none → all but `out_proj.bias` and the
    layer norm are gone. Raises InvalidRequestError that names a head which is not there to keep.
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
        raise InvalidRequestError(f"{name}: tensor is missing, so nothing can be removed from it")
    if len(features):
        tensors[name] = np.ascontiguousarray(np.take(tensors[name], features, axis=axis))
    else:
        del tensors[name]


def masked_tensors(tensors: Tensors, arch: Architecture, current: HeadLayout, target: HeadLayout) -> Tensors:
    """The same shapes as `tensors`, with W_O columns of heads outside `target` set to zero: gate g_h = 0."""
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
    """The same model with the neurons of `kept` alone; a layer that keeps none has `fc2.bias` left of it."""
    slim = dict(tensors)
    for prefix, positions in _feed_forwards(kept):
        if len(positions) < len(tensors.get(f"{prefix}.fc1.bias", ())):
            for name, axis in (("fc1.weight", 0), ("fc1.bias", 0), ("fc2.weight", 1)):
                _slice(slim, f"{prefix}.{name}", positions, axis)
    return slim


def masked_ffn(tensors: Tensors, kept: Neurons) -> Tensors:
    """The same shapes as `tensors`, with `fc2` columns of neurons outside `kept` set to zero: their gate is 0."""
    masked = dict(tensors)
    for prefix, positions in _feed_forwards(kept):
        if (name := f"{prefix}.fc2.weight") in tensors:
            keep = np.zeros(tensors[name].shape[1], bool)
            keep[positions] = True
            masked[name] = np.where(keep[None, :], tensors[name], np.float32(0))
    return masked


def padded_ffn(tensors: Tensors, widths: FfnWidths) -> tuple[Tensors, int]:
    """Tensors that compute the same function with as many neurons in every layer, and that number (at least 1).

    Missing neurons come last and are zero on both sides: each of the activation functions is 0 at 0.
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


def _feed_forwards(kept: Neurons) -> Iterator[tuple[str, np.ndarray]]:
    """Name of every layer of `kept`, and its positions as an array."""
    for stack in STACKS:
        for layer, positions in enumerate(kept[stack]):
            yield f"{stack}.layers.{layer}", np.asarray(positions, np.int64)
