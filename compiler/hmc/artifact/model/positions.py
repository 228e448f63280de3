"""Encodings of positions: sinusoids in the two forms that translation models have."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt

PositionForm = Literal["marian", "fairseq"]
"""Marian: position 0 comes first. fairseq (M2M100, NLLB): the first token is at position 2, and frequencies are spaced
a little wider."""
FIRST = 2
"""Position of the first token in fairseq's form: 0 and 1 belong to its padding."""


def position_table(form: PositionForm, positions: int, d_model: int) -> npt.NDArray[np.float32]:
    """`[positions, d_model]`: row t encodes the token t, with sines in the first half and cosines in the second."""
    if form == "marian":
        return sinusoidal_positions(positions, d_model)
    if form == "fairseq":
        return fairseq_positions(positions, d_model)
    assert_never(form)


def sinusoidal_positions(positions: int, d_model: int) -> npt.NDArray[np.float32]:
    """Marian's form, `[positions, d_model]` (Vaswani et al. 2017, 3.5)."""
    column = np.arange(d_model // 2)
    angle = np.arange(positions)[:, None] / np.power(10000.0, 2 * column / d_model)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


def fairseq_positions(positions: int, d_model: int) -> npt.NDArray[np.float32]:
    """fairseq's form, `[positions, d_model]`, with angles in 32 bits as in Transformers' M2M100."""
    half = d_model // 2
    step = np.float32(np.log(10000) / max(half - 1, 1))
    exponents = np.arange(half, dtype=np.float32) * -step
    frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
    angle = np.arange(FIRST, FIRST + positions, dtype=np.float32)[:, None] * frequencies
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
