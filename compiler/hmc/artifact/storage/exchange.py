"""Swapping two directories in one step. Python has no function for it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Constants of Linux: paths relative to the working directory; exchange instead of replace."""


def exchange(first: Path, second: Path) -> bool:
    """Swaps two paths of one file system in one step: neither is missing at any time.

    Returns False and changes nothing if the system or the file system cannot swap.
    """
    rename = _renameat2()
    if rename is None:
        return False
    done: int = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0


@cache
def _renameat2() -> Callable[..., Any] | None:
    """`renameat2` of the C library (glibc 2.28, musl 1.2.5); None where it is missing."""
    try:
        function = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function
