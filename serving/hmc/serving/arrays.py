"""Array types, element types and constants that all of serving shares. This file imports NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
"""Inputs or outputs of a graph, by name."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NEG_INF = -np.inf
"""Log-probability of a token that may not be chosen."""

DTYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": np.uint16,  # NumPy has no bfloat16: the host holds its bytes
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}
"""Element type, as ONNX Runtime names it → NumPy's."""


def round_up(value: int, step: int) -> int:
    """The smallest multiple of `step` that is at least `value`."""
    return -(-value // step) * step
