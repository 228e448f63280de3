"""The command `hmc`, run in this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from hmc.cli.main import build


def run_hmc(words: Sequence[str | Path], *, stdin: bytes | None = None, columns: int | None = None) -> Result:
    """Runs `hmc WORDS…`, optionally on a terminal of `columns`, and returns what it wrote and its exit code."""
    env = None if columns is None else {"COLUMNS": str(columns)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", lambda _: _command())
        return CliRunner().invoke(typer.Typer(), list(map(str, words)), input=stdin, env=env)


@cache
def _command() -> Any:
    """Every command with its options. It is read off the functions once: that takes longer than most commands run."""
    return get_command(build())
