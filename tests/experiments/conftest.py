"""Runs the experiments as a developer runs them: `python -m experiments.NAME`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from experiments.support.counting.workload import DEMO

from hmc.compiler.bundle.requests import LevelRequest
from hmc.compiler.bundle.writer import compile_bundle

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """The outcome of one run."""

    status: int
    report: dict[str, Any]
    """Content of its --report file; empty when there is none."""
    output: str
    """Standard output, then standard error."""


Experiment = Callable[..., Ran]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Runs `python -m experiments.NAME ARGUMENTS… --report FILE` with one thread."""

    def run(name: str, *arguments: str | Path) -> Ran:
        report = tmp_path / "report.json"
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", f"experiments.{name}", *map(str, arguments), "--report", str(report)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=REPOSITORY)
        found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
        return Ran(ran.returncode, found, ran.stdout + ran.stderr)

    return run


@pytest.fixture(scope="session")
def embedded_on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model with all heads and with a quarter of them, at fp16. Read-only."""
    path = tmp_path_factory.mktemp("counts") / "bundle"
    checkpoint = DEMO / "checkpoint"
    compile_bundle([LevelRequest(checkpoint), LevelRequest(checkpoint, 36)], path, precisions=("fp16",))
    return path


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    """Writes sentences, one a line, to a file of the given name."""

    def write(name: str, sentences: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        return path

    return write
