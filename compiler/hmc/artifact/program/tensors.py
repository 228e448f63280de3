"""Reading a tensor of a program as it is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.program.operations import TensorPlace

STORED = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int8": "i1"}
"""Element type → NumPy's. NumPy has no bfloat16: these are its bits."""


def stored_tensor(bundle: Path, place: TensorPlace) -> npt.NDArray[Any]:
    """The numbers at a place, which is not written. Raises OSError."""
    kind = np.dtype(STORED[place.type])
    flat = np.fromfile(bundle / place.file, kind, (place.end - place.offset) // kind.itemsize, offset=place.offset)
    if place.leading is None:
        return flat.reshape(place.shape)
    strides = (place.leading * kind.itemsize, kind.itemsize)
    return np.lib.stride_tricks.as_strided(flat, place.shape, strides, writeable=False)
