"""The wheels, built once, for the guards that look at what is shipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def _built(repository: Path, out: Path, runtime: str) -> Path:
    """A wheel of this checkout, built with the hatchling that is installed."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(repository)]
    environment = os.environ | {"HEADMASK_RUNTIME": runtime}
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("headmask-*.whl")
    return path


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return _built(repository, tmp_path_factory.mktemp("wheel"), "gpu")


@pytest.fixture(scope="session")
def wheel_for_cpus(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that asks for ONNX Runtime without CUDA."""
    return _built(repository, tmp_path_factory.mktemp("wheel-for-cpus"), "cpu")
