"""What is imported loads no library before it is needed: neither a client, nor a package, nor a recipe."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.processes import environment

CLIENT = {"onnxruntime", "sentencepiece", "torch", "onnx"}
"""Packages that a machine which only asks a server does not need."""
GRAPHS = {"onnx", "onnx_ir", "onnxruntime"}


def modules_after(code: str) -> set[str]:
    """Runs `code` in a fresh interpreter, and returns the top-level modules that it has loaded."""
    program = f"{code}\nimport json, sys; print(json.dumps(sorted(name.split('.')[0] for name in sys.modules)))"
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import hmc.serving.client", CLIENT),
        ("from hmc.serving.client import Client; Client('localhost:1').close()", CLIENT),
        (
            "from hmc.serving.client import Selector, DecodeOptions, Translation, LevelList; Selector(max_heads=1)",
            CLIENT,
        ),
        ("import hmc.serving", CLIENT),
        ("from hmc.serving import DecodeOptions, Selector, Translation", CLIENT),
        ("import hmc.benchmark", {"onnxruntime", "onnx", "sacrebleu", "rich"}),
        ("from hmc.benchmark import run_benchmark, measure_quality", {"onnx", "onnx_ir", "matplotlib"}),
        ("import hmc.compiler; from hmc.compiler import LevelRequest, read_calibration", GRAPHS),
        ("import hmc.training", {"torch", "numpy", "lightning_fabric"}),
        ("from hmc.training import Recipe, load_recipe", {"torch"}),
    ],
)
def test_nothing_heavy_is_loaded(code: str, heavy: set[str]) -> None:
    assert not modules_after(code) & heavy


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("from hmc.serving import Translator", {"onnxruntime", "sentencepiece"}),
        ("from hmc.training import Transformer", {"torch"}),
    ],
)
def test_what_is_needed_is_loaded(code: str, needed: set[str]) -> None:
    """Shows that the check above can fail."""
    assert needed <= modules_after(code)
