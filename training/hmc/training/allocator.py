"""glibc's allocator, told to keep what a training step frees for the next one."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def keep_freed_memory() -> None:
    """Stops glibc from handing large blocks back to the kernel and faulting them in again at every training step.

    Page faults were about 20 % of a step on CPU. Affects the whole process; does nothing where libc is not glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 2**30)
    libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
