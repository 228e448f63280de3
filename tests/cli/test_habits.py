"""Habits that every command of `hmc` keeps: --json, -o, and panels in long help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, hmc_command, refused
from tests.processes import environment

from hmc.cli.analyze import ANALYSES
from hmc.cli.bench import COMMANDS as MEASURES
from hmc.cli.main import COMMANDS, GROUPS, HELP_WIDTH
from hmc.serving.server.background import BackgroundServer

LONG = 8
"""Options that a help text may list without panels."""


def commands() -> Iterator[Any]:
    """Every command and subcommand, as (words, command)."""
    for name, command in hmc_command().commands.items():
        if hasattr(command, "list_commands"):
            for inner in command.list_commands(None):
                yield pytest.param(command.get_command(None, inner), id=f"{name} {inner}")
        else:
            yield pytest.param(command, id=name)


ALL = list(commands())


def test_the_commands_are_all_there() -> None:
    assert len(ALL) == sum(map(len, COMMANDS.values())) - len(GROUPS) + 6 + len(ANALYSES) + len(MEASURES)


@pytest.mark.parametrize("command", ALL)
def test_json_is_a_flag_everywhere(command: Any) -> None:
    (flag,) = (option for option in command.params if "--json" in option.opts)
    assert flag.is_flag


@pytest.mark.parametrize("command", ALL)
def test_out_has_a_short_form_everywhere(command: Any) -> None:
    for option in command.params:
        assert ("--out" in option.opts) == ("-o" in option.opts)


@pytest.mark.parametrize("command", ALL)
def test_long_help_has_panels_and_every_option_a_text(command: Any) -> None:
    options = [option for option in command.params if option.param_type_name == "option" and not option.hidden]
    assert all(option.help for option in options)
    own = [option for option in options if option.name not in ("help", "quiet", "verbose")]
    if len(own) > LONG:
        assert {option.rich_help_panel is None for option in own} == {False}


def test_completion_is_offered(hmc: Hmc) -> None:
    ran = hmc("--help")
    assert "--install-completion" in ran.stdout
    assert "--show-completion" in ran.stdout


def test_help_in_a_pipe_is_not_wrapped_at_80_columns() -> None:
    command = [sys.executable, "-m", "hmc.cli", "prune", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert max(map(len, ran.stdout.splitlines())) == int(HELP_WIDTH)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compile", "c", "--eval", "test.en", "-o", "b"], "'--eval': it takes 2 values, and -o is an option"),
        (["compile", "c", "-o", "b", "--shortlist", "--precision", "int8"], "2 values, and --precision is an option"),
        (["compile", "c", "--calibrate", "-o", "b"], "'--calibrate': it takes a value, and -o is an option"),
        (["token", "new", "a", "--scope", "--json"], "'--scope': it takes a value, and --json is an option"),
        (["admin", "load", "h6", "--server", "--token", "x"], "it takes a value, and --token is an option"),
        (["analyze", "ablate", "c", "--seed", "-o", "x"], "it takes a value, and -o is an option"),
    ],
)
def test_an_option_is_no_value_of_another(hmc: Hmc, words: list[str], said: str) -> None:
    ran = refused(hmc(*words))
    assert said in " ".join(ran.stderr.split())


def test_a_value_may_be_spelled_like_an_option(hmc: Hmc, server: BackgroundServer) -> None:
    for words in (["--level=h6", "a"], ["--level", "h6", "--", "--level"]):
        assert hmc("translate", "--server", server.address, *words).exit_code == 0
    done(hmc("translate", "--server", server.address, "--target-prefix=--level", "a"))
