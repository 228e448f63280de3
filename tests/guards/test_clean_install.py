"""The wheel for CPUs serves with its base dependencies alone, in a new environment without PyTorch and onnx."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmc.artifact.distribution import VERSION

pytestmark = pytest.mark.slow

INSTALL_S = 400
"""Seconds after which what pip has not got from its index fails these tests, and says so."""

# Extras' packages that must not come with the base, by import name.
ABSENT = ("torch", "onnx", "onnx_ir", "datasets", "lightning_fabric", "matplotlib")

REPORT_ABSENT = f"""
import importlib.util, json
print(json.dumps([name for name in {ABSENT!r} if importlib.util.find_spec(name)]))
"""

TRANSLATE = """
import json, sys
from hmc.serving import Translator
translations = Translator(sys.argv[1], level="full").translate(["A man."])
print()
print(json.dumps({"translations": len(translations), "heavy": [n for n in ("torch", "onnx") if n in sys.modules]}))
"""


def run(command: list[str], folder: Path) -> str:
    """Runs a command in `folder` with nothing of this environment on its import path; returns what it prints."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"not done in {INSTALL_S} s; is pip's index reachable? {' '.join(command)}")
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def clean_python(wheel_for_cpus: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
    python = folder / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"
    constraints = str(repository / "constraints.txt")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]  # that of the tests, which works for another Python
    network = ("--timeout", "30", "--retries", "3")
    run([*pip, "install", "--quiet", *network, "--no-compile", "-c", constraints, str(wheel_for_cpus)], folder)
    return python


def test_base_dependencies_bring_neither_torch_nor_onnx(clean_python: Path, tmp_path: Path) -> None:
    assert json.loads(run([str(clean_python), "-c", REPORT_ABSENT], tmp_path)) == []


def test_it_is_the_small_build_of_the_runtime(clean_python: Path, tmp_path: Path) -> None:
    ask = "import importlib.metadata as m; print(sorted(d.name for d in m.distributions() if 'onnxr' in d.name))"
    assert run([str(clean_python), "-c", ask], tmp_path) == "['onnxruntime']\n"


def test_the_command_is_installed(clean_python: Path, tmp_path: Path) -> None:
    command = str(clean_python.with_name("hmc"))
    assert "translate" in run([command, "--help"], tmp_path)
    assert run([command, "--version"], tmp_path) == f"hmc {VERSION}\n"


def test_the_advice_for_an_extra_names_the_wheel(clean_python: Path, wheel_for_cpus: Path, tmp_path: Path) -> None:
    ask = "from hmc.artifact.distribution import how_to_install as how; print(how('train'))"
    assert (
        run([str(clean_python), "-c", ask], tmp_path) == f"pip install 'headmask[train] @ {wheel_for_cpus.as_uri()}'\n"
    )


def test_a_bundle_is_translated(clean_python: Path, tmp_path: Path, tiny_bundle: Path) -> None:
    printed = run([str(clean_python), "-c", TRANSLATE, str(tiny_bundle)], tmp_path)
    assert json.loads(printed.splitlines()[-1]) == {"translations": 1, "heavy": []}
