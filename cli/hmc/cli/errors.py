"""How a command ends: exit code 0 is success, 1 a bug, 2 a wrong command line, input or artifact, 130 Ctrl-C."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hmc.artifact.errors import HmcError, InternalServiceError, how_to_install

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
}
"""Top-level module → the extra that installs it."""
HINTS = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}
"""What to do about errors of writing that may name no file."""


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """The command, with the errors that a user can act on as a message and an exit code in place of a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            code = 130
        except BrokenPipeError:
            # The reader of our output has gone, as `head` does: nothing to say, and nobody to say it to.
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
    """Writes the message to stderr, where there is one, and returns the exit code."""
    if sys.stderr is not None:  # it is where a shell closed it (`2>&-`)
        sys.stderr.write(f"hmc: {message}\n")
    return code
