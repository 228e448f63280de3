"""Decoders that start from zeros.

Marian starts its decoder from a zero vector and never writes pad. Transformers starts from pad, whose embedding is
zero. CTranslate2's converter removes pad's row and starts from zeros. So a model with a learned embedding of pad would
compute something else there. Its decoder reads pad only at the first position: the embedding can be added to that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.checkpoint.checkpoint import Checkpoint, Tensors
from hmc.artifact.model.architecture import TARGET_EMBEDDING as EMBEDDING
from hmc.artifact.model.architecture import Architecture
from hmc.artifact.model.positions import sinusoidal_positions

BIAS, POSITIONS = "final_logits_bias", "decoder.embed_positions.weight"
NEVER = -1e4
"""Logit of a token that must not be chosen. 16-bit floats can represent it."""


def starts_from_zero(checkpoint: Checkpoint) -> bool:
    """Whether the embedding of pad is zero, as Marian and CTranslate2 assume."""
    return not checkpoint.tensors[EMBEDDING][checkpoint.architecture.pad_id].any()


def with_zero_start(tensors: Tensors, arch: Architecture) -> Tensors:
    """The same decoder, started from zeros: `tensors` and the decoder's positions `[max_positions, d_model]`.

    Pad's embedding is added to the first position and then set to zero. Pad's logit becomes NEVER, so its probability
    goes to the other tokens. Nothing else changes.
    """
    pad, scale = arch.pad_id, _scale(arch)
    positions = sinusoidal_positions(arch.max_positions, arch.d_model)
    positions[0] += scale * tensors[EMBEDDING][pad]
    embedding, bias = tensors[EMBEDDING].copy(), tensors[BIAS].copy()
    embedding[pad], bias[pad] = 0.0, NEVER
    return {**tensors, EMBEDDING: embedding, BIAS: bias, POSITIONS: positions}


def moved_back(found: dict[str, npt.NDArray[Any]], table: npt.NDArray[Any], arch: Architecture) -> bool:
    """Undoes `with_zero_start`: moves the difference of `table` from the sinusoid, at its first position, to pad's
    embedding in `found`.

    Returns False and changes nothing if the model would then compute something else: if pad's embedding is not zero, or
    pad can be chosen.
    """
    embedding, bias = found.get(EMBEDDING), found.get(BIAS)
    if embedding is None or bias is None or not arch.pad_id < min(len(embedding), bias.size):
        return False
    if embedding[arch.pad_id].any() or bias.reshape(-1)[arch.pad_id] > NEVER / 2:
        return False
    start = table[0].astype(np.float32) - sinusoidal_positions(1, arch.d_model)[0]
    found[EMBEDDING] = embedding.astype(np.float32)
    found[EMBEDDING][arch.pad_id] = start / _scale(arch)
    return True


def _scale(arch: Architecture) -> np.float32:
    return np.float32(arch.d_model**0.5 if arch.scale_embedding else 1.0)
