"""ONNX Runtime stores no telemetry, whichever module imports it first."""

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from tests.processes import ROOTS


def importers() -> list[str]:
    """Modules of ours that import ONNX Runtime."""
    pattern = re.compile(r"^(?:import|from) onnxruntime\b", re.MULTILINE)
    files = [(root, file) for root in ROOTS for file in root.rglob("*.py") if pattern.search(file.read_text())]
    return sorted(".".join(file.relative_to(root).with_suffix("").parts) for root, file in files)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph of one operator."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy")
    body = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(body, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "graph.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("module", importers())
def test_nothing_is_kept_for_a_report(module: str, graph: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # In CI ONNX Runtime collects nothing anyway.
    kept = {k: v for k, v in os.environ.items() if k != "CI" and not k.startswith(("ORT_", "XDG_", "GITHUB_"))}
    environment = kept | {"HOME": str(home), "PYTHONPATH": os.pathsep.join(map(str, ROOTS))}
    code = (
        f"import {module}, onnxruntime\n"
        f"onnxruntime.InferenceSession({str(graph)!r}, providers=['CPUExecutionProvider'])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert [str(file) for file in home.rglob("*")] == []


def test_modules_are_found() -> None:
    assert {"hmc.compiler.checks.session", "hmc.engine.runtime.sessions"} <= set(importers())
