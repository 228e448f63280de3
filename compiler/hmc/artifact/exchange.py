"""Swapping two directory entries in one step, which Python's own renames cannot."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux: paths are relative to the working directory; both names stay, with each other's content."""


def exchange(first: Path, second: Path) -> bool:
    """Swaps what two paths of one file system name; at no time is either of them missing.

    False, and nothing is changed, where the system or the file system cannot do it.
    """
    rename = _renameat2()
    if rename is None:
        return False
    done: int = rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE)
    return done == 0


@cache
def _renameat2() -> Callable[..., Any] | None:
    """The function of the C library (glibc 2.28, musl 1.2.5); None where there is none."""
    try:
        function = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function
