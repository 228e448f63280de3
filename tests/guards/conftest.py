"""The wheels, built once, for the guards that look at what is shipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.once import Once
from tests.processes import REPOSITORY


def _wheel_at(path: Path, runtime: str) -> None:
    """A wheel of this checkout, built with the hatchling that is installed."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(path), str(REPOSITORY)]
    environment = os.environ | {"HEADMASK_RUNTIME": runtime}
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr


def _wheel(once: Once, runtime: str) -> Path:
    (found,) = once(_wheel_at, runtime).glob("headmask-*.whl")
    return found


@pytest.fixture(scope="session")
def wheel(once: Once) -> Path:
    """The wheel."""
    return _wheel(once, "gpu")


@pytest.fixture(scope="session")
def wheel_for_cpus(once: Once) -> Path:
    """The wheel that asks for ONNX Runtime without CUDA."""
    return _wheel(once, "cpu")
