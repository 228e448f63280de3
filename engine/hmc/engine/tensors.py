"""The tensors of a program, read from a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.program.operations import Program, TensorPlace
from hmc.artifact.program.tensors import stored_tensor

Tensor = npt.NDArray[Any]


def read_tensors(bundle: Path, program: Program) -> dict[str, Tensor]:
    """Name → tensor; int8 as it is, and floats of 16 bits widened to fp32. Raises OSError."""
    return {name: _read(bundle, place) for name, place in program.tensors.items()}


def _read(bundle: Path, place: TensorPlace) -> Tensor:
    raw = np.ascontiguousarray(stored_tensor(bundle, place))
    if place.type == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32) if place.type == "float16" else raw


def round_to(values: npt.NDArray[np.float32], kind: str) -> npt.NDArray[np.float32]:
    """fp32 values as a type of 16 bits holds them, half to even. Numbers that are too large for float16 become its
    largest number."""
    if kind == "float16":
        largest = np.float32(65504)
        clipped = np.where(np.isfinite(values), np.clip(values, -largest, largest), values)
        return clipped.astype(np.float16).astype(np.float32)
    if kind == "bfloat16":
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))
    return values
