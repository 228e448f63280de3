"""The weights file of a checkpoint: fp32, fp16, or matrices of 8 bits with a scale for every row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from hmc.artifact.git_lfs import why
from hmc.artifact.model.architecture import Architecture, tensor_shapes

Tensors = dict[str, npt.NDArray[np.float32]]
StoredAs = Literal["float32", "float16", "int8"]
"""How weights are stored. `int8`: matrices as int8 `[rows, columns]` beside `NAME.scale`, fp32 `[rows]`, where a number
is scale · q; vectors as fp32. The largest error is 1/254 of the largest number of the row."""
SCALE = ".scale"


def write_weights(tensors: Mapping[str, npt.NDArray[np.float32]], file: Path, dtype: StoredAs) -> None:
    """Writes the tensors in the order of their names."""
    if dtype == "int8":
        save_file(dict(sorted(_quantized(tensors).items())), file)
    else:
        save_file({name: np.ascontiguousarray(tensors[name], dtype=dtype) for name in sorted(tensors)}, file)


def read_weights(file: Path) -> Tensors:
    """Returns every tensor as fp32. `weights_problems` must have found none."""
    stored = load_file(file)
    scales = {name.removesuffix(SCALE): stored.pop(name) for name in [*stored] if name.endswith(SCALE)}
    tensors = {name: value.astype(np.float32, copy=False) for name, value in stored.items()}
    for name, scale in scales.items():
        tensors[name] = tensors[name] * scale[:, None]
    return tensors


def weights_problems(file: Path, expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Problems of the file whose tensors should have these names and shapes. Reads only its header."""
    try:
        with safe_open(file, framework="numpy") as handle:
            slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
            stored = {name: tuple(part.get_shape()) for name, part in slices.items()}
            integers = [name for name, part in slices.items() if part.get_dtype() == "I8"]
    except (SafetensorError, OSError) as error:
        return [f"{file.name} {why(file, f'is not readable: {error}')}"]
    matrices = [name for name in integers if len(expected.get(name, ())) == 2]
    shapes = {**expected, **{name + SCALE: expected[name][:1] for name in matrices}}
    integer_problems = [f"tensor {name} is of 8 bits, and is no matrix" for name in integers if name not in matrices]
    return _shape_problems(stored, shapes, {}, "expected") + integer_problems


def fitted(
    arrays: Mapping[str, npt.NDArray[Any]],
    arch: Architecture,
    *,
    file_names: Mapping[str, str] | None = None,
    wanted: str = "expected",
) -> tuple[Tensors, list[str]]:
    """The tensors of another program's model as fp32 ones of the full layout, and every problem: missing, unknown or
    misshapen tensors, NaN and infinity.

    file_names: names of tensors in the file, if they differ from the names of a checkpoint. wanted: the words before
    the right shape. Both are for messages.
    """
    expected = tensor_shapes(arch, arch.full_layout())
    shapes = {name: value.shape for name, value in arrays.items()}
    if problems := _shape_problems(shapes, expected, file_names or {}, wanted):
        return {}, problems
    tensors = {name: np.ascontiguousarray(arrays[name], np.float32) for name in expected}
    return tensors, [
        f"tensor {name} holds NaN or infinity" for name, value in tensors.items() if not np.isfinite(value).all()
    ]


def _shape_problems(
    shapes: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    file_names: Mapping[str, str],
    wanted: str,
) -> list[str]:
    """Tensors that are missing, unknown or misshapen."""
    problems = [f"tensor {file_names.get(name, name)} is missing" for name in expected if name not in shapes]
    problems += [f"tensor {name} does not belong to this architecture" for name in shapes if name not in expected]
    return problems + [
        f"tensor {file_names.get(name, name)} has shape {list(shapes[name])}, {wanted} {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]


def _quantized(tensors: Mapping[str, npt.NDArray[np.float32]]) -> dict[str, npt.NDArray[Any]]:
    """Rounds every matrix to int8, row by row."""
    stored: dict[str, npt.NDArray[Any]] = {}
    for name, value in tensors.items():
        if value.ndim != 2:
            stored[name] = np.ascontiguousarray(value, np.float32)
            continue
        largest = np.abs(value).max(axis=1, initial=0)
        scale = np.where(largest > 0, largest, 127).astype(np.float32) / np.float32(127)
        stored[name] = np.round(value / scale[:, None]).clip(-127, 127).astype(np.int8)
        stored[name + SCALE] = scale
    return stored
