"""The weights of a level: closed heads are removed, and open heads get a width that ONNX Runtime's operators take.

GroupQueryAttention takes head dimensions that are multiples of 8, on CPUs and on CUDA.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmc.artifact.checkpoint.checkpoint import Checkpoint, Tensors
from hmc.artifact.checkpoint.slimming import slim_tensors
from hmc.artifact.model.architecture import Architecture, attention_module
from hmc.artifact.model.heads import KINDS, HeadLayout

MULTIPLE = 8


@dataclass(frozen=True)
class SlimModel:
    """What the graphs of a level are written from."""

    arch: Architecture
    """The checkpoint's, but `head_dim` is the width that heads have in `tensors`."""
    layout: HeadLayout
    tensors: Tensors
    """Tensors that lose nothing are the checkpoint's own arrays, not copies."""


def slim_model(checkpoint: Checkpoint, layout: HeadLayout) -> SlimModel:
    """The checkpoint with the heads of `layout` alone. Raises InvalidRequestError for a head that it does not have."""
    arch = checkpoint.architecture
    tensors = slim_tensors(checkpoint.tensors, arch, checkpoint.layout, layout)
    width = -(-arch.head_dim // MULTIPLE) * MULTIPLE
    if width == arch.head_dim:
        return SlimModel(arch, layout, tensors)
    wide = arch.model_copy(update={"head_dim": width})
    return SlimModel(wide, layout, widen_heads(tensors, arch, layout, width))


def widen_heads(tensors: Tensors, arch: Architecture, layout: HeadLayout, width: int) -> Tensors:
    """Tensors that compute the same function with heads of `width` features; `width` is at least `arch.head_dim`.

    The new features are the last of each head, and are zero in queries, keys, values and W_O. Operators divide scores
    by √width instead of √head_dim, so queries are multiplied by √(width / head_dim).
    """
    wide, growth = dict(tensors), np.float32(np.sqrt(width / arch.head_dim))
    for kind in KINDS:
        stack, module = attention_module(kind)
        for layer, heads in enumerate(layout[kind]):
            if not heads:
                continue
            prefix = f"{stack}.layers.{layer}.{module}"
            for projection in "qkv":
                for part in ("weight", "bias"):
                    name = f"{prefix}.{projection}_proj.{part}"
                    widened = _widen(tensors[name], arch.head_dim, width)
                    wide[name] = widened * growth if projection == "q" else widened
            name = f"{prefix}.out_proj.weight"
            wide[name] = np.ascontiguousarray(_widen(tensors[name].T, arch.head_dim, width).T)
    return wide


def _widen(rows: np.ndarray, head_dim: int, width: int) -> np.ndarray:
    """`[H·head_dim, …]` → `[H·width, …]`."""
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    wide = np.zeros((len(heads), width, *rows.shape[1:]), rows.dtype)
    wide[:, :head_dim] = heads
    return wide.reshape(-1, *rows.shape[1:])
