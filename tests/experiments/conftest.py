"""Runs the experiments as `python -m experiments.NAME` does."""

from __future__ import annotations

import io
import json
import logging
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.bundles import bundle_at
from tests.command import run_hmc
from tests.once import Once
from tests.support.files import write_lines
from tests.support.trained import CHECKPOINT


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
    """Runs `python -m experiments.NAME ARGUMENTS… --report FILE`, in this process: libraries are loaded once for all.

    Commands of HMC that the experiment starts run in this process too.
    """

    def run(name: str, *arguments: str | Path) -> Ran:
        report = tmp_path / "report.json"
        out, err = io.StringIO(), io.StringIO()
        output = redirect_stdout(out), redirect_stderr(err)
        with pytest.MonkeyPatch.context() as patch, output[0], output[1], warnings.catch_warnings():
            patch.setattr(sys, "argv", [name, *map(str, arguments), "--report", str(report)])
            patch.setattr(subprocess, "run", _command_or(subprocess.run))
            patch.setattr(logging, "raiseExceptions", False)  # a handler of another test may have lost its stream
            warnings.simplefilter("ignore")
            with pytest.raises(SystemExit) as ended:
                runpy.run_module(f"experiments.{name}", run_name="__main__")
        said = f"{ended.value.code}\n" if isinstance(ended.value.code, str) else ""
        found = json.loads(report.read_text(encoding="utf-8")) if report.is_file() else {}
        return Ran(1 if said else int(ended.value.code or 0), found, out.getvalue() + err.getvalue() + said)

    return run


def _command_or(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """`subprocess.run`, which runs `python -m hmc.cli WORDS…` in this process."""

    def run(command: list[str], **how: Any) -> Any:
        if command[:3] != [sys.executable, "-m", "hmc.cli"]:
            return otherwise(command, **how)
        ran = run_hmc(command[3:])
        assert ran.exit_code == 0, ran.output
        return subprocess.CompletedProcess(command, ran.exit_code)

    return run


@pytest.fixture(scope="session")
def embedded_on_cuda(once: Once) -> Path:
    """The embedded model with all heads and with a quarter of them, at fp16. Read-only."""
    return once(bundle_at, CHECKPOINT, (None, 36), ("fp16",))


@pytest.fixture
def lines(tmp_path: Path) -> Callable[[str, list[str]], Path]:
    """Writes sentences, one a line, to a file of the given name."""

    def write(name: str, sentences: list[str]) -> Path:
        path = tmp_path / name
        write_lines(path, sentences)
        return path

    return write
