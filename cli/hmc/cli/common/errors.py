"""Errors and exit codes: 0 success, 1 a bug, 2 a wrong command line, input or artifact, 130 Ctrl-C."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hmc.artifact.distribution import how_to_install
from hmc.artifact.errors import HmcError, InternalServiceError

P = ParamSpec("P")
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


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Wraps a command: errors that a user can act on become a message and an exit code, without a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            code = 130
        except BrokenPipeError:
            # The reader of our output, such as `head`, has closed the pipe. Nothing more is printed.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
            where = f"{error.filename}: " if error.filename is not None else ""
            hint = HINTS.get(error.errno or 0, "check the path and its permissions")
            code = complain(f"{where}{error.strerror}; {hint}")
        raise SystemExit(code)

    return run


def complain(message: str, code: int = 2) -> int:
    """Writes the message to standard error and returns the exit code."""
    if sys.stderr is not None:  # it is None if the shell closed it (`2>&-`)
        sys.stderr.write(f"hmc: {message}\n")
    return code
