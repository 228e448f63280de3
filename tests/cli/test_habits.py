"""Habits that every command of `hmc` keeps: --json, -o, and panels in long help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Hmc
from tests.command import done, hmc_command, refused
from tests.processes import environment
from typer.main import get_command

from hmc.cli.analyze import ANALYSES
from hmc.cli.bench import COMMANDS as MEASURES
from hmc.cli.main import COMMANDS, GROUPS, HELP_WIDTH, build
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


def test_a_meaning_that_names_a_setting_names_its_option() -> None:
    helps = {option.name: option.help for option in hmc_command().commands["serve"].params}
    assert helps["idle_unload"].startswith("With --lazy: unload")


def test_only_commands_that_are_named_get_their_options() -> None:
    commands: Any = get_command(build(["score", "--help"]))
    numbers = {name: len(commands.commands[name].params) for name in ("score", "serve")}
    assert numbers["score"] > LONG
    assert numbers["serve"] == 0


@pytest.mark.parametrize("command", ALL)
def test_a_sentence_of_the_help_ends_where_the_terminal_does(command: Any) -> None:
    """A docstring's line end is none of the help: the terminal wraps."""
    for text in (command.help, *(param.help for param in command.params if param.help)):
        assert [paragraph for paragraph in text.split("\n\n") if "\n" in paragraph] == []


def test_the_list_of_commands_is_wrapped_by_the_terminal() -> None:
    """In a process of its own: typer reads the width once."""
    command = [sys.executable, "-m", "hmc.cli", "--help"]
    shown = subprocess.run(
        command, env=environment(TERMINAL_WIDTH="400"), capture_output=True, check=True
    ).stdout.decode()
    for panel in COMMANDS.values():
        for name in panel:
            first = hmc_command().commands[name.rstrip("_")].help.partition("\n\n")[0]
            assert first in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("translate --bundle b --level x --max-heads 5 a", "--level and --max-heads each choose the level: give one"),
        ("score f f --bundle b --auto --max-bleu-drop 1", "--max-bleu-drop and --auto each choose the level"),
        ("translate --bundle b --beam 0 a", "--beam 0: choose 1 to 16"),
        ("translate --bundle b --beam 2 --n-best 3 a", "--n-best 3: choose 1 to --beam (2)"),
        ("translate --bundle b --no-repeat-ngram 101 a", "--no-repeat-ngram 101: choose 0 to 100"),
        ("translate --bundle b --sample --top-p 3 a", "--top-p 3.0: choose more than 0, up to 1"),
        ("translate --bundle b --to= a", "--to has 0 characters: give 1 to 64, or none"),
        ("translate --bundle b --from= a", "--from has 0 characters"),
        ("translate --bundle b --sample --coverage-penalty 1 a", "--coverage-penalty are for beam search"),
        ("distill c --source f -o o --beam 0", "--beam 0: choose 1 to 16"),
        ("distill c --source f -o o --n-best 9", "--n-best 9: choose 1 to --beam (4)"),
        ("bench b --source f --beam 0", "--beam 0: choose 1 to 16"),
        ("bench b --source f --sentences -1", "--sentences -1: choose 1 sentence or more"),
        ("bench load --server x:1 --source f --share 2", "--share 2: choose a number above 0"),
        ("bench load --server x:1 --source f --beam 0", "--beam 0: choose 1 to 16"),
        ("serve b --max-rows 0", "--max-rows 0: choose 1 or more"),
        ("up b --port 99999", "--port 99999: choose 0 to 65535"),
    ],
)
def test_errors_speak_of_options(hmc: Hmc, tmp_path: Path, words: str, said: str) -> None:
    (tmp_path / "f").write_text("a dog\n")
    refused(hmc(*(str(tmp_path / word) if word in ("f", "o") else word for word in words.split())), said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("translate", "--beam", "abc", "a"), "'--beam': 'abc': choose a whole number"),
        (("translate", "--length-penalty", "abc", "a"), "'--length-penalty': 'abc': choose a number"),
        (("serve", "b", "--port", "1.5"), "'--port': '1.5': choose a whole number"),
        (("up", "b", "--prune-steps", "3"), "'--prune-steps': '3': choose 10 or more"),
        (("prune", "c", "-o", "o", "--learning-rate", "x"), "'--learning-rate': 'x': choose a number"),
    ],
)
def test_a_value_of_another_type_is_named_in_plain_words(hmc: Hmc, words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(refused(hmc(*words)).stderr.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("distill c --source f -o o --keep loop --max-repeats 3", "--max-repeats drops nothing with --keep loop"),
        ("distill c --source f -o o --keep length_ratio --max-length-ratio 3", "--max-length-ratio drops nothing with"),
        ("distill c --source f -o o --device cuda --workers 2", "--workers 2: on cuda a level has one; leave it out"),
        ("analyze ablate c --data f -o o --no-bleu --beam 4", "--beam is for translations, and --no-bleu makes none"),
        (
            "analyze all-but-one c --data f -o o --no-bleu --beam 4",
            "--beam is for translations, and --no-bleu makes none",
        ),
        ("analyze groups c --data f -o o --no-bleu --beam 1", "--beam is for translations, and --no-bleu makes none"),
        (
            "analyze cumulative c --data f -o o --no-bleu --beam 4",
            "--beam is for translations, and --no-bleu makes none",
        ),
        ("analyze correlate c --data f --data f -o o --beam 4", "--beam is for translations, and --effect loss makes"),
        ("analyze correlate c --data f --data f -o o --effect importance --batch-tokens 9", "--batch-tokens is for"),
        ("analyze roles c --data f -o o --frequent 100", "--frequent needs --frequencies: give that too"),
        ("compile c -o o --shortlist-best 3", "--shortlist-best needs --shortlist"),
        ("compile c -o o --beam 4", "--beam needs --eval"),
        ("compile c -o o --rank-by gates", "--rank-by needs --target-heads or"),
        ("compile c -o o --confidence 0.9", "--confidence needs --max-bleu-drop"),
        ("bench b --source f --load-seconds 10", "--load-seconds needs --load: give"),
        ("bench b --source f --checkpoint c", "--checkpoint needs --peers: give"),
        ("bench load --server x:1 --source f --arrivals constant --seed 2", "--seed is for random times"),
        ("bench load --server x:1 --source f --arrivals f --seed 2", "--seed is for random times"),
        ("bench load --server x:1 --source f --arrivals f --seconds 2", "--seconds has no effect on the times of"),
        ("bench load --server x:1 --source f --arrivals f --rate 2", "a trace has its own times: leave out the rate"),
        ("translate --bundle b --sample --beam 4 a", "--sample does not work with --beam"),
        ("translate --bundle b --attention-head cross.0.0 a", "--attention-head needs --alignment or --coverage"),
        ("score f f --bundle b --attention-head cross.0.0", "--attention-head needs --align"),
        (
            "translate --bundle b --engine local --source f -o o --executor reference",
            "--engine chooses the executor itself",
        ),
        ("serve b --device cpu --gpu-memory 80%", "--gpu-memory works only on CUDA, and not with --device cpu"),
        ("serve b --device cpu --gpu-attention cudnn", "--gpu-attention works only on CUDA, and not with --device cpu"),
        ("serve b --connection-age-seconds 0 --connection-grace-seconds 5", "which 0 turns off: leave it out"),
        ("serve b --idle-unload 5", "--idle-unload needs lazy"),
        ("serve b --replicas 2", "--replicas needs --ray"),
        ("up b --no-serve --port 50052", "--port needs --serve"),
        ("up b --no-serve --http-port 0", "--http-port needs --serve"),
        ("up b --prune-steps 10", "--prune-steps needs --target-heads: give"),
    ],
)
def test_an_option_without_effect_is_refused_before_any_work(hmc: Hmc, tmp_path: Path, words: str, said: str) -> None:
    """No checkpoint, bundle or server is there: they are not looked at."""
    (tmp_path / "f").write_text("a dog\n")
    ran = refused(hmc(*(str(tmp_path / word) if word in ("f", "o") else word for word in words.split())))
    assert said in " ".join(ran.stderr.split())


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
