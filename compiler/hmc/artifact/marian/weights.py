"""Tensors of a MarianMT file ↔ tensors of a checkpoint. Names differ by `model.`; tied tensors must be equal.

Marian starts its decoder from a zero vector and never writes pad. Transformers starts from pad, whose embedding is
zero. CTranslate2's converter removes pad's row and starts from zeros. So a model with a learned embedding of pad would
compute something else there. Its decoder reads pad only at the first position: the embedding can be added to that
(`with_zero_start`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.checkpoint.checkpoint import Checkpoint
from hmc.artifact.checkpoint.weights import Tensors, fitted
from hmc.artifact.model.architecture import (
    LOGITS_BIAS,
    OUTPUT,
    SOURCE_EMBEDDING,
    TARGET_EMBEDDING,
    Architecture,
    PositionForm,
    position_table,
    sinusoidal_positions,
)
from hmc.artifact.storage.weight_files import Arrays

POSITIONS = "decoder.embed_positions.weight"
NEVER = -1e4
"""Logit of a token that must not be chosen. 16-bit floats can represent it."""
DECODER = "decoder.embed_tokens.weight"
TIED = (TARGET_EMBEDDING, SOURCE_EMBEDDING, DECODER, OUTPUT)
"""Names of the one tied matrix. A file has it under at least one of them."""
TIED_TARGETS = (DECODER, OUTPUT)
"""The same, if sources have their own matrix."""
EXACT = 1e-5
ROUGH = 1e-2
"""How far positions may be from the sinusoids, in 32 and in 16 bits."""
POSITION_TABLES = ("encoder.embed_positions.weight", POSITIONS)
"""Position tables, which older files have. They must be sinusoids, except for the first row of a decoder that starts
from zeros (`with_zero_start`)."""


def checked_weights(stored: Arrays, arch: Architecture) -> tuple[Tensors, list[str]]:
    """The stored tensors as fp32 ones of the full layout, and every problem: missing, unknown or misshapen tensors."""
    arrays = {name.removeprefix("model."): value for name, value in stored.items()}
    tables = {name: arrays.pop(name) for name in POSITION_TABLES if name in arrays}
    separate = arch.source_vocab_size is not None
    tied = TIED_TARGETS if separate else TIED
    embeddings = {name: arrays.pop(name) for name in tied if name in arrays}
    problems = _tie_problems(embeddings, arch)
    if embeddings:
        arrays[TARGET_EMBEDDING] = next(iter(embeddings.values()))
    # Transformers starts from zeros, and models without an output bias may leave the buffer out.
    arrays[LOGITS_BIAS] = arrays.get(LOGITS_BIAS, np.zeros(arch.vocab_size, np.float32)).reshape(-1)
    problems += _position_problems(tables, arrays, arch)
    tensors, wrong = fitted(arrays, arch, file_names=_file_names(separate), wanted="config.json says")
    return tensors, problems + wrong


def _file_names(separate: bool) -> dict[str, str]:
    """Name in a checkpoint → name in the file, where that is another. separate: sources have their own embedding."""
    return {TARGET_EMBEDDING: DECODER} if separate else {}


def _tie_problems(embeddings: dict[str, npt.NDArray[Any]], arch: Architecture) -> list[str]:
    names = list(embeddings)
    only = "shared, tied embeddings are" if arch.source_vocab_size is None else "an output tied to its embedding is"
    return [
        f"tensors {names[0]} and {name} differ: only {only} supported"
        for name in names[1:]
        if not np.array_equal(embeddings[names[0]], embeddings[name])
    ]


def _position_problems(tables: Arrays, arrays: Arrays, arch: Architecture) -> list[str]:
    """Tables that are not sinusoids. A decoder that starts from zeros may add a vector to the first row: it becomes the
    embedding of pad in `arrays`."""
    problems = []
    for name, table in tables.items():
        tolerance = EXACT if table.dtype.itemsize >= 4 else ROUGH
        rows = far_rows(table, "marian", (arch.max_positions, arch.d_model), tolerance)
        if rows and not (name == POSITIONS and rows == [0] and moved_back(arrays, table, arch)):
            problems.append(f"tensor {name} does not hold sinusoids; only static positions are supported")
    return problems


def far_rows(table: npt.NDArray[Any], form: PositionForm, shape: tuple[int, int], tolerance: float) -> list[int]:
    """Positions where a table differs from the sinusoids of a form. A table of another shape: [-1]."""
    if table.shape != shape:
        return [-1]
    expected = position_table(form, *shape)
    close = np.abs(table.astype(np.float32) - expected).max(axis=1) <= tolerance  # False for NaN
    rows: list[int] = np.flatnonzero(~close).tolist()
    return rows


def marian_names(tensors: Tensors) -> Tensors:
    """Checkpoint tensors of the full layout under the names and shapes that MarianMTModel saves."""
    file_names = _file_names(SOURCE_EMBEDDING in tensors)
    named = {
        f"model.{file_names.get(name, name)}": np.ascontiguousarray(value)
        for name, value in tensors.items()
        if name != LOGITS_BIAS
    }
    return {LOGITS_BIAS: np.ascontiguousarray(tensors[LOGITS_BIAS][None]), **named}


def starts_from_zero(checkpoint: Checkpoint) -> bool:
    """Whether the embedding of pad is zero, as Marian and CTranslate2 assume."""
    return not checkpoint.tensors[TARGET_EMBEDDING][checkpoint.architecture.pad_id].any()


def with_zero_start(tensors: Tensors, arch: Architecture) -> Tensors:
    """The same decoder, started from zeros: `tensors` and the decoder's positions `[max_positions, d_model]`.

    Pad's embedding is added to the first position and then set to zero. Pad's logit becomes NEVER, so its probability
    goes to the other tokens. Nothing else changes.
    """
    pad = arch.pad_id
    scale = _scale(arch)
    positions = sinusoidal_positions(arch.max_positions, arch.d_model)
    positions[0] += scale * tensors[TARGET_EMBEDDING][pad]
    embedding = tensors[TARGET_EMBEDDING].copy()
    bias = tensors[LOGITS_BIAS].copy()
    embedding[pad] = 0.0
    bias[pad] = NEVER
    return {**tensors, TARGET_EMBEDDING: embedding, LOGITS_BIAS: bias, POSITIONS: positions}


def moved_back(arrays: dict[str, npt.NDArray[Any]], table: npt.NDArray[Any], arch: Architecture) -> bool:
    """Undoes `with_zero_start`: moves the difference of `table` from the sinusoid, at its first position, to pad's
    embedding in `arrays`.

    Returns False and changes nothing if the model would then compute something else: if pad's embedding is not zero, or
    pad can be chosen.
    """
    embedding = arrays.get(TARGET_EMBEDDING)
    bias = arrays.get(LOGITS_BIAS)
    if embedding is None or bias is None or not arch.pad_id < min(len(embedding), bias.size):
        return False
    if embedding[arch.pad_id].any() or bias.reshape(-1)[arch.pad_id] > NEVER / 2:
        return False
    start = table[0].astype(np.float32) - sinusoidal_positions(1, arch.d_model)[0]
    arrays[TARGET_EMBEDDING] = embedding.astype(np.float32)
    arrays[TARGET_EMBEDDING][arch.pad_id] = start / _scale(arch)
    return True


def _scale(arch: Architecture) -> np.float32:
    return np.float32(arch.d_model**0.5 if arch.scale_embedding else 1.0)
