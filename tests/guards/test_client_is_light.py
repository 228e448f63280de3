"""The client loads neither ONNX Runtime nor SentencePiece, and public names are imported on first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

HEAVY = {"onnxruntime", "sentencepiece", "torch", "onnx"}
"""Packages that a machine which only asks a server does not need."""
PACKAGES = ("hmc.serving", "hmc.serving.client")


def modules_after(repository: Path, code: str) -> set[str]:
    """Runs `code` in a fresh interpreter, and returns the top-level modules that it has loaded."""
    roots = os.pathsep.join(str(path.parent) for path in repository.glob("*/hmc"))
    program = f"{code}\nimport json, sys; print(json.dumps(sorted(name.split('.')[0] for name in sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": roots},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout))


@pytest.mark.parametrize(
    "code",
    [
        "import hmc.serving.client",
        "from hmc.serving.client import Client; Client('localhost:1').close()",
        "from hmc.serving.client import Selector, DecodeOptions, Translation, LevelList; Selector(max_heads=1)",
        "import hmc.serving",
        "from hmc.serving import DecodeOptions, Selector, Translation",
    ],
)
def test_a_client_loads_nothing_heavy(repository: Path, code: str) -> None:
    assert not modules_after(repository, code) & HEAVY


def test_a_translator_loads_what_it_needs(repository: Path) -> None:
    """Shows that the check above can fail."""
    assert {"onnxruntime", "sentencepiece"} <= modules_after(repository, "from hmc.serving import Translator")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_documented(package: str) -> None:
    module = import_module(package)
    for name in module.__all__:
        assert name in dir(module)
        value = getattr(module, name)
        assert name == "Level" or (value.__doc__ or "").strip(), f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'Tranlator'"):
        import_module(package).Tranlator  # noqa: B018
