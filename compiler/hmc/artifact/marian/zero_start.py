"""Decoders that start from zeros.

Marian starts its decoder from a zero embedding and has no pad to write. Transformers adds a pad whose embedding is
zero to say the same; CTranslate2's converter takes both for granted and drops pad's row. A model whose pad has learned
an embedding is another function there, unless what starts its decoder stands elsewhere: at the first position, the only
one where pad is ever read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.architecture import TARGET_EMBEDDING as EMBEDDING
from hmc.artifact.architecture import Architecture, sinusoidal_positions
from hmc.artifact.checkpoint import Checkpoint, Tensors

BIAS, POSITIONS = "final_logits_bias", "decoder.embed_positions.weight"
NEVER = -1e4
"""Logit of a token that is not there; 16-bit floats hold it."""


def starts_from_zero(checkpoint: Checkpoint) -> bool:
    """True when the embedding of pad is zero. Engines that take it for zero (Marian, CTranslate2) then agree."""
    return not checkpoint.tensors[EMBEDDING][checkpoint.architecture.pad_id].any()


def with_zero_start(tensors: Tensors, arch: Architecture) -> Tensors:
    """The same decoder, started from zeros: `tensors` and the decoder's positions `[max_positions, d_model]`.

    What pad's embedding added to the first position is in the table; pad's embedding is zero and its logit NEVER, so
    the other tokens share its probability. Nothing else changes.
    """
    pad, scale = arch.pad_id, _scale(arch)
    positions = sinusoidal_positions(arch.max_positions, arch.d_model)
    positions[0] += scale * tensors[EMBEDDING][pad]
    embedding, bias = tensors[EMBEDDING].copy(), tensors[BIAS].copy()
    embedding[pad], bias[pad] = 0.0, NEVER
    return {**tensors, EMBEDDING: embedding, BIAS: bias, POSITIONS: positions}


def moved_back(found: dict[str, npt.NDArray[Any]], table: npt.NDArray[Any], arch: Architecture) -> bool:
    """Puts what `table` has at its first position, beyond the sinusoid, into pad's embedding in `found`.

    False, and nothing done, where that would be another function: pad's embedding is not zero, or pad can be written.
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
