"""Removing closed heads from the weights, and bringing them back as zeros: rows of W_Q, W_K, W_V and columns of W_O
(Voita et al. 2019, eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hmc.artifact.architecture import Architecture, attention_module, tensor_shapes
from hmc.artifact.checkpoint import Tensors
from hmc.artifact.errors import InvalidRequestError
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
        raise InvalidRequestError(f"{name}: tensor is missing, so its heads cannot be removed")
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
