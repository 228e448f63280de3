"""Memory of this process: its size, and how unused memory goes back to the system."""

from __future__ import annotations

import ctypes
import os
import sys

import psutil

M_MMAP_THRESHOLD = -3
"""Parameter of mallopt (malloc.h): blocks of at least this size are mapped one by one. By default glibc raises the size
when such blocks are freed; setting the parameter stops that."""


M_ARENA_MAX = -8
"""Parameter of mallopt: the largest number of heaps. By default glibc makes up to 8 for each core and gives them to new
threads in turn. Each heap keeps the free memory between its blocks."""


def process_bytes() -> int:
    """Memory of this process in bytes.

    On Linux this is the proportional set size: a page shared by n processes counts as 1/n. On other systems it is the
    memory that only this process uses.
    """
    info = psutil.Process().memory_full_info()
    return int(getattr(info, "pss", info.uss))


def return_free_memory() -> None:
    """Gives freed memory back to the system. With glibc only: other C libraries do it by themselves or cannot."""
    _call_glibc("malloc_trim", 0)


def limit_heaps() -> None:
    """From now on, blocks of at least one MiB go back to the system as soon as they are freed. All threads together use
    as many heaps as there are cores, at least 2. With glibc only.

    This changes the whole process, so a program may call it, but a library should not.
    """
    _call_glibc("mallopt", M_MMAP_THRESHOLD, 2**20)
    _call_glibc("mallopt", M_ARENA_MAX, max(2, os.cpu_count() or 1))


def _call_glibc(name: str, *arguments: int) -> None:
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*arguments)
