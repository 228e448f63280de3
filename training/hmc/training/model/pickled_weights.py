"""Weights in PyTorch's own files (`pytorch_model.bin`), read without running code that a file may hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hmc.artifact.errors import HmcError


def read_pickled(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Name → tensor, 16-bit floats as fp32. Only tensors and plain containers are read (`weights_only`): a file that
    asks for anything else is refused, and nothing of it runs.

    Raises HmcError for such a file, for a damaged one, and for one that is no mapping from names to tensors.
    """
    try:
        found: Any = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 - weights only
    except Exception as error:  # errors of pickle, whose import is banned, and others
        raise HmcError(f"{file.name} is not opened: {_reason(error)}") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) and isinstance(n, str) for n, v in found.items()):
        raise HmcError(f"{file.name} is no state_dict: it must be one mapping from names to tensors")
    return {name: _array(value) for name, value in found.items()}


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if "weights_only" in text.lower():
        asked = re.search(r"(GLOBAL |class |function )[^,;\n]{1,120}", text)
        return (
            "it holds more than tensors, which could run code; get the model as safetensors, or from a source that you "
            f"trust{f' ({asked[0].strip()})' if asked else ''}"
        )
    return f"it is damaged, or no file of PyTorch; copy or download it again ({text.splitlines()[0][:160]})"


def _array(value: Tensor) -> npt.NDArray[Any]:
    value = value.detach()
    if value.is_floating_point() and value.dtype != torch.float64:
        value = value.float()
    array: npt.NDArray[Any] = np.ascontiguousarray(value.numpy())
    return array
