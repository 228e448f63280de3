"""Public names of the compiler and the artifact are there, are described, and load nothing before they are used."""

from __future__ import annotations

import subprocess
import sys
from inspect import isclass, isfunction

import pytest

import hmc.artifact
import hmc.compiler


@pytest.mark.parametrize("room", [hmc.artifact, hmc.compiler], ids=["artifact", "compiler"])
def test_names_are_there_and_described(room: object) -> None:
    names: list[str] = room.__all__  # type: ignore[attr-defined]
    for name in names:
        value = getattr(room, name)
        assert value.__doc__ or not (isclass(value) or isfunction(value)), name
    assert set(names) <= set(dir(room))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = room.nothing  # type: ignore[attr-defined]


def test_importing_the_compiler_loads_no_onnx() -> None:
    code = (
        "import sys, hmc.compiler; from hmc.compiler import LevelRequest, read_calibration;"
        "print([m for m in ('onnx', 'onnx_ir', 'onnxruntime') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
