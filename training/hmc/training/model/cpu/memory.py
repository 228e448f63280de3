"""Memory of a process that trains on a CPU: glibc's allocator, and the caches of compiled kernels."""

from __future__ import annotations

import ctypes
import os
import platform

CACHED_KERNELS = 64
"""Compiled kernels in each of two caches, by default 1024.

oneDNN compiles a kernel for every shape of a product. Batches of many lengths have so many shapes that 1024 kernels
take gigabytes, and hardly any of them is used in a later update again. This number covers the shapes of one update.
"""
CACHE_SIZES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables: sizes of oneDNN's own cache, and of the cache in PyTorch's binding to oneDNN (ideep)."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def configure_memory() -> None:
    """Sets up memory for training; affects the whole process. Call it before the first product of matrices.

    glibc keeps freed memory for the next update instead of returning it to the kernel: page faults were about 20 % of
    an update. Both caches keep `CACHED_KERNELS` kernels, unless an environment variable already sets another number.
    The libraries read these variables once, at their first product.
    """
    for name in CACHE_SIZES:
        os.environ.setdefault(name, str(CACHED_KERNELS))
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 2**30)
        libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
