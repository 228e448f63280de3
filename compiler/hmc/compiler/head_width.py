"""Heads as wide as ONNX Runtime's attention takes them: GroupQueryAttention wants a head dimension that is a multiple
of 8, on a CPU as on CUDA."""

from __future__ import annotations

import numpy as np

from hmc.artifact.architecture import Architecture, attention_module
from hmc.artifact.checkpoint import Checkpoint, Tensors
from hmc.artifact.heads import KINDS, HeadLayout
from hmc.artifact.slimming import slim_tensors

MULTIPLE = 8


def slim_model(checkpoint: Checkpoint, layout: HeadLayout) -> tuple[Architecture, Tensors]:
    """What the graphs of a level are authored from: the weights of the heads in `layout`, and the architecture with the
    head dimension that these have."""
    arch = checkpoint.architecture
    tensors = slim_tensors(checkpoint.tensors, arch, checkpoint.layout, layout)
    width = -(-arch.head_dim // MULTIPLE) * MULTIPLE
    if width == arch.head_dim:
        return arch, tensors
    return arch.model_copy(update={"head_dim": width}), widen_heads(tensors, arch, layout, width)


def widen_heads(tensors: Tensors, arch: Architecture, layout: HeadLayout, width: int) -> Tensors:
    """Tensors that compute the same function with heads of `width` features, not fewer than there are.

    New features come last in each head and are zero in queries, keys, values and W_O. Operators divide scores by the
    root of the width that they see, so queries grow by the root of its ratio to the head dimension.
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
