"""What every command is wrapped in: values of options are checked, errors and signals become exit codes.

Exit codes: 0 success, 1 a bug, 2 a wrong command line, input or artifact, 130 Ctrl-C.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from itertools import takewhile
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import BadParameter
from typer.core import TyperCommand, TyperOption

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import HmcError, InternalServiceError
from hmc.cli.common.consoles import say
from hmc.cli.common.options import opt

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter

SAYING = "Output"
"""The panel of `--help` with the options that every command has."""
R = TypeVar("R")
EXTRA_OF_MODULE = {
    "datasets": "train",
    "lightning_fabric": "train",
    "tensorboard": "train",
    "torch": "train",
    "ml_dtypes": "compile",
    "onnx": "compile",
    "onnx_ir": "compile",
    "matplotlib": "plot",
    "fsspec": "bulk",
    "pyarrow": "bulk",
    "ray": "ray",
}
"""Top-level module → the extra that installs it."""
HINTS = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}
"""Advice for errors of writing. Such errors may name no file."""
EXIT_CODE = 128 + signal.SIGTERM
"""The exit code that shells report for a process ended by SIGTERM."""


QUIET = Annotated[bool, opt(SAYING, "Say nothing but the result and errors.", "--quiet", "-q")]
VERBOSE = Annotated[bool, opt(SAYING, "Log what happens inside, too.", "--verbose", "-v")]


@contextmanager
def reported() -> Iterator[None]:
    """Errors that a user can act on become a message and an exit code, without a traceback."""
    try:
        yield
        return
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        _drop_unwritten()
        code = 141
    except ModuleNotFoundError as error:
        extra = EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        code = complain(f"this command needs {error.name}, which is not installed: {how_to_install(extra)}")
    except HmcError as error:
        code = complain(str(error), 1 if isinstance(error, InternalServiceError) else 2)
    except OSError as error:
        if error.filename is None and error.errno not in HINTS:
            raise
        _drop_unwritten()
        where = f"{error.filename}: " if error.filename is not None else ""
        hint = HINTS.get(error.errno or 0, "check the path and its permissions")
        code = complain(f"{where}{error.strerror}; {hint}")
    raise SystemExit(code)


def _drop_unwritten() -> None:
    """Drops what standard output cannot take. Python would try again when it ends, and change the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(command: Callable[..., R]) -> Callable[..., R]:
    """Wraps a command: it takes --quiet and --verbose, and its errors are reported. A parameter that is a dataclass
    stands for several options, its fields."""

    @functools.wraps(command)
    @reported()
    def run(*, quiet: bool = False, verbose: bool = False, **given: Any) -> R:
        say(quiet=quiet, verbose=verbose)
        return _called(command, given)  # type: ignore[no-any-return]

    ours = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", QUIET), ("verbose", VERBOSE))
    ]
    run.__signature__ = inspect.Signature([*_options(command), *ours])  # type: ignore[attr-defined]  # what typer reads
    return run


def _options(of: Any) -> Iterator[inspect.Parameter]:
    """The parameters of a command, each dataclass replaced by its fields."""
    for each in inspect.signature(of, eval_str=True).parameters.values():
        if is_dataclass(each.annotation):
            yield from _options(each.annotation)
        else:
            yield each.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _called(of: Any, values: Mapping[str, Any]) -> Any:
    """What a command or a dataclass returns for the values of `_options`."""
    arguments = {}
    for name, each in inspect.signature(of, eval_str=True).parameters.items():
        arguments[name] = _called(each.annotation, values) if is_dataclass(each.annotation) else values[name]
    return of(**arguments)


def complain(message: str, code: int = 2) -> int:
    """Writes the message to standard error and returns the exit code."""
    try:
        if sys.stderr is not None:  # it is None if the shell closed it (`2>&-`)
            sys.stderr.write(f"hmc: {message}\n")
    except OSError:  # Python would try again when it ends, and change the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """SIGTERM raises SystemExit inside the block. Outside the main thread it does nothing: no signal arrives there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(EXIT_CODE)


class CheckedCommand(TyperCommand):
    """A command whose options do not take another option for their value.

    click would read `--eval test.en -o bundle` as the two files `test.en` and `-o`. Write `--option=-o` for a value
    that is spelled like an option.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """As click does it. Raises BadParameter where an option stands in place of a value."""
        _check_values(self.get_params(ctx), list(takewhile(lambda word: word != "--", args)), ctx)
        return super().parse_args(ctx, args)


def _check_values(params: Sequence[Parameter], args: Sequence[str], ctx: Context) -> None:
    options = [option for option in params if isinstance(option, TyperOption)]
    named = {name: option for option in options for name in (*option.opts, *option.secondary_opts)}
    at = 0
    while at < len(args):
        option = named.get(args[at])
        number = 0 if option is None or option.is_flag or option.count else option.nargs
        for value in args[at + 1 : at + 1 + number]:
            if option and value in named:
                values = "a value" if number == 1 else f"{number} values"
                raise BadParameter(f"it takes {values}, and {value} is an option", ctx, option)
        at += 1 + number
