"""Exit codes and messages."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Annotated

import pytest
from typer import Argument, Option, Typer
from typer.testing import CliRunner

from hmc.artifact import HmcError, InvalidArtifactError
from hmc.artifact.errors import InternalServiceError
from hmc.artifact.stopping import Stopped
from hmc.cli.common.commands import _options, guarded
from hmc.cli.common.options import opt
from hmc.cli.main import COMMANDS, GROUPS


def end(error: BaseException) -> int | str | None:
    """The exit code of a command that raises `error`."""

    def command() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        guarded(command)()
    return stop.value.code


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (HmcError("do this"), 2, "hmc: do this\n"),
        (InvalidArtifactError("bundle b", ["x is missing"], "Compile again."), 2, "  - x is missing\nCompile again."),
        (InternalServiceError("bug"), 1, "hmc: bug\n"),
        (KeyboardInterrupt(), 130, ""),
        (Stopped(signal.SIGINT, "two files are kept"), 130, "hmc: SIGINT: two files are kept\n"),
        (Stopped(signal.SIGTERM, "two files are kept"), 143, "hmc: SIGTERM: two files are kept\n"),
        (
            ModuleNotFoundError(name="torch"),
            2,
            "this command needs torch, which is not installed: in the folder of HMC's source, pip install '.[train]'",
        ),
        (PermissionError(13, "Permission denied", "/x"), 2, "hmc: /x: Permission denied; check the path and its perm"),
        (OSError(28, "No space left on device"), 2, "hmc: No space left on device; make room\n"),
        (OSError(28, "No space left on device", "/x"), 2, "hmc: /x: No space left on device; make room\n"),
        (OSError(27, "File too large"), 2, "hmc: File too large; raise the limit on the size of files (ulimit -f)\n"),
        (ModuleNotFoundError(name="onnx.helper"), 2, "pip install '.[compile]'"),
        (ModuleNotFoundError(name="matplotlib"), 2, "pip install '.[plot]'"),
    ],
)
def test_codes(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert end(error) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert "Traceback" not in printed.err


def together(
    a: Annotated[bool, opt("P", "", "--a")] = False,
    b: Annotated[int | None, opt("P", "", needs="a c")] = None,
    c: Annotated[float, opt("P", "")] = 0.0,
    d: Annotated[bool, opt("P", "", "--d/--no-d")] = True,
    e: Annotated[int | None, opt("P", "", "--else", needs="d", without="a")] = None,
) -> None:
    """Options that belong together."""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--b 0", "--b needs --a or --c: give that too, or leave --b out"),
        ("--b 1 --a", None),
        ("--b 1 --c 2", None),
        ("--else 1", None),
        ("--else 1 --no-d", "--else needs --d: give that too, or leave --else out"),
        ("--else 0 --a", "--else does not work with --a: leave one of them out"),
        ("--no-d --a", None),
    ],
)
def test_what_belongs_together(words: str, said: str | None) -> None:
    app = Typer()
    app.command()(guarded(together))
    ran = CliRunner().invoke(app, words.split())
    assert (ran.exit_code, ran.stderr) == ((0, "") if said is None else (2, f"hmc: {said}\n"))


def test_what_belongs_together_is_named_as_parameters() -> None:
    """A name that no parameter has would be found only when a user gives the option."""
    for name in chain(*COMMANDS.values()):
        if name not in GROUPS:
            check_names(import_module(f"hmc.cli.{name}").command)


def check_names(command: Callable[..., None]) -> None:
    parameters = list(_options(command))
    declared = [each for parameter in parameters for each in getattr(parameter.annotation, "__metadata__", ())]
    named = chain(*([*each.needs, *each.without] for each in declared if hasattr(each, "needs")))
    assert set(named) <= {parameter.name for parameter in parameters}


def test_no_message_is_written_to_a_closed_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    @guarded
    def fail() -> None:
        raise HmcError("wrong")

    monkeypatch.setattr("sys.stderr", None)  # as after `2>&-`
    with pytest.raises(SystemExit) as ended:
        fail()
    assert ended.value.code == 2


def test_unexpected_errors_keep_their_traceback() -> None:
    def command() -> None:
        raise ZeroDivisionError("bug")

    with pytest.raises(ZeroDivisionError):
        guarded(command)()


def test_system_errors_without_a_path_are_bugs() -> None:
    def command() -> None:
        raise OSError(9, "Bad file descriptor")

    with pytest.raises(OSError, match="Bad file"):
        guarded(command)()


def test_a_missing_module_of_our_own_is_a_bug() -> None:
    def command() -> None:
        raise ModuleNotFoundError(name="hmc.nowhere")

    with pytest.raises(ModuleNotFoundError):
        guarded(command)()


@dataclass(frozen=True)
class Corner:
    x: Annotated[int, Option("--left")] = 0


@dataclass(frozen=True)
class Box:
    name: Annotated[str, Argument()]
    corner: Corner = Corner()
    y: int = 2


def test_a_dataclass_stands_for_its_fields() -> None:
    made = []
    app = Typer()

    @app.command()
    @guarded
    def command(first: int = 1, *, box: Box, last: int = 3) -> None:
        made.append((first, box, last))

    for words in (["a"], ["--left", "5", "b", "--y", "6", "--first", "4", "--last", "7"]):
        ran = CliRunner().invoke(app, words)
        assert ran.exit_code == 0, ran.output
    assert made == [(1, Box("a"), 3), (4, Box("b", Corner(5), 6), 7)]
