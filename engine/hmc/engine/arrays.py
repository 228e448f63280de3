"""Array types, element types and constants that all of serving shares. This file imports nothing heavier than NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.artifact.element_types import ELEMENT_TYPES

Arrays = dict[str, npt.NDArray[Any]]
"""Inputs or outputs of a graph, by name."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NEG_INF = -np.inf
"""Log-probability of a token that may not be chosen."""

DTYPES = {element_type.runtime: element_type.host for element_type in ELEMENT_TYPES}
"""Element type, as ONNX Runtime names it → NumPy's."""
