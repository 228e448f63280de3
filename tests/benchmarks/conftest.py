"""The scripts of benchmarks/, run as a user runs them, and their modules for tests."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@dataclass(frozen=True)
class Ran:
    """What a script left behind."""

    status: int
    report: dict[str, Any]
    """Of its --json; empty when it wrote none."""
    said: str
    """Both outputs."""


Script = Callable[..., Ran]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs `benchmarks/NAME ARGUMENTS… --json FILE`, on one thread."""

    def run(name: str, *arguments: str | Path) -> Ran:
        report = tmp_path / "report.json"
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(BENCHMARKS / name), *map(str, arguments), "--json", str(report)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
        return Ran(ran.returncode, found, ran.stdout + ran.stderr)

    return run


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    """Writes sentences to a file of this name."""

    def write(name: str, sentences: list[str]) -> Path:
        path = tmp_path / name
        path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        return path

    return write
