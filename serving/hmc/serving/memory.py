"""Memory of this process: how much it has, and giving back what it no longer needs."""

from __future__ import annotations

import ctypes
import sys

import psutil

M_MMAP_THRESHOLD = -3
"""Of malloc.h: blocks of this size and more are mapped one by one. Set, it no longer grows as such blocks are freed."""


def process_bytes() -> int:
    """Memory of this process in bytes, pages that it shares with others counted in proportion where the system tells.

    That is the proportional set size on Linux, elsewhere what is this process's alone.
    """
    info = psutil.Process().memory_full_info()
    return int(getattr(info, "pss", info.uss))


def return_free_memory() -> None:
    """Gives freed memory back to the system, where the C library can (glibc) and would otherwise keep it."""
    _call_glibc("malloc_trim", 0)


def return_large_blocks_at_once() -> None:
    """From now on blocks of a mebibyte and more go back to the system when they are freed; glibc alone keeps them.

    It holds for the whole process: for programs, not for libraries.
    """
    _call_glibc("mallopt", M_MMAP_THRESHOLD, 2**20)


def _call_glibc(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*arguments)
