"""What every command is wrapped in: values of options are checked, errors and signals become exit codes.

Exit codes: 0 success, 1 a bug, 2 a wrong command line, input or artifact, 75 what may pass (a server that does not
answer), 130 Ctrl-C, 143 SIGTERM. `hmc.cli.reference` has the whole list.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import BadParameter
from typer.core import TyperCommand, TyperOption
from typer.models import OptionInfo

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import (
    HmcError,
    InternalServiceError,
    InvalidRequestError,
    RetryableError,
    plain_problem,
    renamed,
)
from hmc.artifact.stopping import Stopped
from hmc.cli.common.consoles import say
from hmc.cli.common.options import dashed, opt

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
REINSTALL = (
    "part of it is missing, as where both builds were installed and one was removed; run `pip uninstall onnxruntime "
    "onnxruntime-gpu`, and then `pip install onnxruntime`, or onnxruntime-gpu for CUDA"
)
HINTS = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}
"""Advice for errors of writing. Such errors may name no file."""
NO_TEMPORARY = "No usable temporary directory"
"""How Python's error begins that no folder for temporary files can be written. It names those that were tried."""
OF_FIELDS = {
    "beam_size": "beam",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "suppressed_tokens": "suppress_token",
    "suppressed_phrases": "suppress_phrase",
    "attention_heads": "attention_head",
    "target_language": "to",
    "limit": "sentences",
    "calibration": "calibrate",
    "sources": "source",
    "references": "reference",
    "text_field": "field",
    "precisions": "precision",
    "speedups": "target_speedup",
    "table_file": "latency_table",
    "distill.weight": "distill",
    "distill.hidden": "distill_hidden",
    "distill.attention": "distill_attention",
    "nested.heads": "nested_heads",
    "nested.levels": "nested_levels",
    "nested.teacher": "nested_teacher",
    "run.compile": "compile",
    "importance": "words",
    "rank_by": "name_of_score",
}
"""Field of a request or of settings → the parameter of commands that sets it, where the names differ."""
TRY_AGAIN = 75
"""The exit code of a command that may succeed later as it is: EX_TEMPFAIL of sysexits.h."""
SIGNALLED = 128
"""What shells add to the number of a signal that ended a process, for its exit code."""


QUIET = Annotated[bool, opt(SAYING, "Say nothing but the result and errors.", "--quiet", "-q")]
VERBOSE = Annotated[bool, opt(SAYING, "Log what happens inside, too.", "--verbose", "-v")]


@contextmanager
def reported(options: Mapping[str, str] | None = None, given: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Errors that a user can act on become a message and an exit code, without a traceback.

    options: field of a request → the option that sets it; given: the values of the command's parameters. Fields in
    messages are named as their options.
    """
    options = options or {}
    given = given or {}
    try:
        yield
        return
    except Stopped as stopped:
        code = SIGNALLED + stopped.number
        complain(f"{signal.Signals(stopped.number).name}: {stopped}")
    except KeyboardInterrupt:
        code = SIGNALLED + signal.SIGINT
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        _drop_unwritten()
        code = 141
    except (ImportError, AttributeError) as error:
        module = error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", "")
        if str(module).partition(".")[0] == "onnxruntime":
            code = complain(f"ONNX Runtime cannot be used ({error}): {REINSTALL}")
            raise SystemExit(code) from error
        if not isinstance(error, ModuleNotFoundError):
            raise
        extra = EXTRA_OF_MODULE.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        code = complain(f"this command needs {error.name}, which is not installed: {how_to_install(extra)}")
    except HmcError as error:
        from hmc.artifact.settings import ConfigurationError  # loads pydantic

        named = {} if isinstance(error, ConfigurationError) else options
        code = complain(renamed(str(error), named), _exit_code(error))
    except OSError as error:
        said = _said(error, given.get("out"))
        if said is None:
            raise
        _drop_unwritten()
        code = complain(said)
    raise SystemExit(code)


def _drop_unwritten() -> None:
    """Drops what standard output cannot take. Python would try again when it ends, and change the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def guarded(command: Callable[..., R], *, bare: bool = False) -> Callable[..., R]:
    """Wraps a command: it takes --quiet and --verbose, and its errors are reported. A parameter that is a dataclass, or
    is annotated with a function that makes one, stands for several options, its fields. Each paragraph of the docstring
    is a line of the help, which the terminal wraps. bare: without the options, which take time to make; it cannot be
    called."""

    @functools.wraps(command)
    def run(*, quiet: bool = False, verbose: bool = False, **given: Any) -> R:
        parameters = list(_options(command))
        options = {each.name: option for each in parameters if (option := _option_of(each))}
        options |= {field: options[name] for field, name in OF_FIELDS.items() if name in options}
        result: list[R] = []
        with reported(options, given):
            say(quiet=quiet, verbose=verbose)
            check_together(parameters, given)
            result.append(_called(command, given))
        return result[0]

    ours = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", QUIET), ("verbose", VERBOSE))
    ]
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    run.__signature__ = inspect.Signature([] if bare else [*_options(command), *ours])  # type: ignore[attr-defined]  # what typer reads
    return run


def check_together(parameters: Sequence[inspect.Parameter], values: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError for an option that is given without one that it needs, or with one that it excludes.

    values: by the names of the parameters. What has its default, or is turned off, is not given.
    """
    values = {name: value for name, value in values.items() if value is not False}
    given = [each for each in parameters if values.get(each.name) not in (each.default, None, [])]
    names = {each.name: _option_of(each) or each.name for each in parameters}
    present = {each.name for each in given}
    for each in given:
        option = names[each.name]
        for declared in getattr(each.annotation, "__metadata__", ()):
            needs = getattr(declared, "needs", [])
            if needs and not any(other in present or values.get(other) for other in needs):
                others = " or ".join(names[other] for other in needs)
                raise InvalidRequestError(f"{option} needs {others}: give that too, or leave {option} out")
            for other in getattr(declared, "without", ()):
                if other in present:
                    raise InvalidRequestError(f"{option} does not work with {names[other]}: leave one of them out")


def _said(error: OSError, out: Any) -> str | None:
    """What an error of the system means for the user; None if that is unknown. out: where the command writes."""
    hint = HINTS.get(error.errno or 0, "check the path and its permissions")
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}; {hint}"
    if error.errno in HINTS:
        where = f"while writing {out}: " if out is not None else ""
        return f"{where}{error.strerror}; {hint}"
    if str(error.strerror).startswith(NO_TEMPORARY):
        return f"{error.strerror}; set TMPDIR to a folder that can be written"
    return None


def _option_of(parameter: inspect.Parameter) -> str | None:
    """The option that sets a parameter, such as `--from`; None for an argument."""
    for declared in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(declared, OptionInfo):
            words = (declared.default, *(declared.param_decls or ()))  # the first name is where a default would be
            names = [word for word in words if isinstance(word, str) and word.startswith("--")]
            return names[0].partition("/")[0] if names else dashed(parameter.name)
    return None


def _exit_code(error: HmcError) -> int:
    if isinstance(error, InternalServiceError):
        return 1
    useless = error.retry_after_s is not None and error.retry_after_s < 0
    return TRY_AGAIN if isinstance(error, RetryableError) and not useless else 2


def _options(of: Any) -> Iterator[inspect.Parameter]:
    """The parameters of a command, each dataclass replaced by its fields."""
    for each in inspect.signature(of, eval_str=True).parameters.values():
        if group := _group(each.annotation):
            yield from _options(group)
        else:
            yield each.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _called(of: Any, values: Mapping[str, Any]) -> Any:
    """What a command or a dataclass returns for the values of `_options`."""
    arguments = {}
    for name, each in inspect.signature(of, eval_str=True).parameters.items():
        group = _group(each.annotation)
        arguments[name] = _called(group, values) if group else values[name]
    return of(**arguments)


def _group(annotation: Any) -> type | None:
    """The dataclass whose fields are options, if a parameter is annotated with one, or with a function that makes
    it."""
    makers = filter(inspect.isfunction, getattr(annotation, "__metadata__", ()))
    made = next((make() for make in makers), annotation)
    return made if isinstance(made, type) and is_dataclass(made) else None


def complain(message: str, code: int = 2) -> int:
    """Writes the message to standard error and returns the exit code."""
    try:
        if sys.stderr is not None:  # it is None if the shell closed it (`2>&-`)
            sys.stderr.write(f"hmc: {message}\n")
    except OSError:  # Python would try again when it ends, and change the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return code


class CheckedCommand(TyperCommand):
    """A command that refuses an option as the value of another option.

    click would read `--eval test.en -o bundle` as the two files `test.en` and `-o`. Write `--option=-o` for a value
    that is spelled like an option.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """As click does it. Raises BadParameter where an option stands in place of a value, and for a value of another
        type, in plain words."""
        _check_values(self.get_params(ctx), list(takewhile(lambda word: word != "--", args)), ctx)
        try:
            return super().parse_args(ctx, args)
        except BadParameter as error:
            if found := getattr(error.__cause__, "errors", None):  # those of Pydantic
                error.message = "; ".join(f"{each['input']!r}: {plain_problem(each)}" for each in found())
            raise


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
