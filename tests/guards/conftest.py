"""The wheels, built once, for the guards that look at what is shipped."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.once import Once
from tests.processes import REPOSITORY

from hmc.engine.native.build import HERE, compiler

COPIES = """#!/bin/sh
for word; do case "$word" in *.new) new=$word;; esac; done
built={folder}/$(basename "$new" .new).so
test -f "$built" && exec cp "$built" "$new"
exec {compiler} "$@"
"""
"""A C compiler that copies the library which the checkout has of its sources."""


def _copying_at(path: Path) -> None:
    command = compiler()
    assert command is not None
    path.mkdir()
    script = COPIES.format(folder=shlex.quote(str(HERE / "built")), compiler=shlex.join(command))
    (path / "cc").write_text(script)
    (path / "cc").chmod(0o755)


@pytest.fixture(scope="session")
def copying(once: Once) -> dict[str, str]:
    """Variables of a build that compiles nothing again. `test_native.py` checks that the checkout's libraries are those
    of its sources."""
    return {"CC": str(once(_copying_at) / "cc")} if compiler() else {}


def _wheel_at(path: Path, runtime: str, copying: dict[str, str]) -> None:
    """A wheel of this checkout, built with the hatchling that is installed."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(path), str(REPOSITORY)]
    environment = os.environ | {"HEADMASK_RUNTIME": runtime} | copying
    built = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert built.returncode == 0, built.stdout + built.stderr


def _wheel(once: Once, runtime: str, copying: dict[str, str]) -> Path:
    (found,) = once(_wheel_at, runtime, copying).glob("headmask-*.whl")
    return found


@pytest.fixture(scope="session")
def wheel(once: Once, copying: dict[str, str]) -> Path:
    """The wheel."""
    return _wheel(once, "gpu", copying)


@pytest.fixture(scope="session")
def wheel_for_cpus(once: Once, copying: dict[str, str]) -> Path:
    """The wheel that asks for ONNX Runtime without CUDA."""
    return _wheel(once, "cpu", copying)
