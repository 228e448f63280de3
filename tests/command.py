"""The command `hmc`, run in this process."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from hmc.cli.main import build


@cache
def hmc_command() -> Any:
    """Every command with its options. They are read off the functions once, which takes longer than most tests."""
    return get_command(build())


def run_hmc(
    words: Sequence[str | Path], *, stdin: bytes | None = None, env: Mapping[str, str | None] | None = None
) -> Result:
    """Runs `hmc WORDS…`, optionally with bytes on stdin and changes of the environment.

    What the command makes of the log ends with it: its handlers write to a stream that is closed then.
    """
    root = logging.getLogger()
    before = list(root.handlers)
    level = root.level
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("typer.testing._get_command", lambda _: hmc_command())
            return CliRunner().invoke(typer.Typer(), list(map(str, words)), input=stdin, env=env)
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def done(ran: Result) -> Result:
    """The result of a command, which ended without an error."""
    assert ran.exit_code == 0, ran.output
    return ran


def refused(ran: Result, *said: str) -> Result:
    """The result of a command that was used wrongly, so that it ended with 2, and said so on stderr."""
    assert ran.exit_code == 2, ran.output
    assert [text for text in said if text not in ran.stderr] == [], ran.stderr
    return ran
