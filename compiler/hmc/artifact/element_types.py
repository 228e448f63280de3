"""Types of the elements of tensors: one table of their names and numbers in NumPy, ONNX, ONNX Runtime and DLPack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ElementType:
    """One type."""

    name: str
    """As the compiler writes it: NumPy's name; NumPy itself has no bfloat16."""
    runtime: str
    """As ONNX Runtime names it."""
    number: int
    """In ONNX."""
    dlpack: int
    """Kind in DLPack: 0 int, 1 uint, 2 float, 4 bfloat."""
    bits: int

    @property
    def is_float(self) -> bool:
        """Whether it is a float of any kind."""
        return self.dlpack > 1

    @property
    def host(self) -> np.dtype[Any]:
        """NumPy's type for it. The host keeps bfloat16 as integers of 16 bits."""
        return np.dtype("uint16" if self.name == "bfloat16" else self.name)


ELEMENT_TYPES = (
    ElementType("float32", "tensor(float)", 1, 2, 32),
    ElementType("uint8", "tensor(uint8)", 2, 1, 8),
    ElementType("int8", "tensor(int8)", 3, 0, 8),
    ElementType("int32", "tensor(int32)", 6, 0, 32),
    ElementType("int64", "tensor(int64)", 7, 0, 64),
    ElementType("float16", "tensor(float16)", 10, 2, 16),
    ElementType("float64", "tensor(double)", 11, 2, 64),
    ElementType("bfloat16", "tensor(bfloat16)", 16, 4, 16),
)
"""Those that graphs of a level have."""
BY_RUNTIME = {element_type.runtime: element_type for element_type in ELEMENT_TYPES}
BY_NUMBER = {element_type.number: element_type for element_type in ELEMENT_TYPES}
