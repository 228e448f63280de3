"""The table of element types says what onnx-ir and NumPy say."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from hmc.artifact.element_types import BY_NUMBER, BY_RUNTIME, ELEMENT_TYPES, ElementType


@pytest.mark.parametrize("found", ELEMENT_TYPES, ids=lambda found: str(found.name))
def test_every_number_and_name_is_that_of_the_library(found: ElementType) -> None:
    known = ir.DataType(found.number)
    assert (known.numpy().name, known.bitwidth) == (found.name, found.bits)
    assert found.host.itemsize * 8 == found.bits
    assert found.dlpack == {"i": 0, "u": 1, "f": 2}.get(np.dtype(known.numpy()).kind, 4)


def test_every_type_has_its_own_names_and_number() -> None:
    assert len({each.name for each in ELEMENT_TYPES}) == len(ELEMENT_TYPES)
    assert len(BY_RUNTIME) == len(BY_NUMBER) == len(ELEMENT_TYPES)
