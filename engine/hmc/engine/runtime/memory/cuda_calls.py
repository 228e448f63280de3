"""The few functions of CUDA's runtime library that HMC calls itself: memory of exact sizes, which ONNX Runtime's arenas
would round up and keep."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from onnxruntime.capi import build_and_package_info

from hmc.artifact.errors import InternalServiceError

TO_DEVICE = 1
FROM_DEVICE = 2
ON_DEVICE = 3
"""cudaMemcpyKind (driver_types.h)."""
OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation (driver_types.h)."""

RELAXED = 2
"""cudaStreamCaptureModeRelaxed (driver_types.h)."""


class OutOfMemory(Exception):
    """The device has no block of this size left."""


def cuda_major() -> str:
    """The major version of CUDA that this ONNX Runtime was built for, such as `13`."""
    return str(getattr(build_and_package_info, "cuda_version", "13.0")).split(".")[0]


@cache
def _library() -> ctypes.CDLL:
    """The CUDA runtime. `cuda_libraries` has loaded it before a device is used."""
    return ctypes.CDLL(f"cudart64_{cuda_major()}.dll" if sys.platform == "win32" else f"libcudart.so.{cuda_major()}")


def error_text(code: int) -> str:
    """CUDA's words for an error."""
    text = _library().cudaGetErrorString
    text.restype = ctypes.c_char_p
    return str((text(code) or b"").decode())


def _call(name: str, *arguments: object) -> None:
    code = getattr(_library(), name)(*arguments)
    if code == OUT_OF_MEMORY:
        _library().cudaGetLastError()  # the error would be reported again by the next call that looks
        raise OutOfMemory
    if code:
        raise InternalServiceError(f"{name} failed with CUDA error {code}: {error_text(code)}")


@contextmanager
def on_device(index: int) -> Iterator[None]:
    """Makes a device the current one of this thread, and then the one that it was before. Meanwhile the calls of this
    thread do not end the capture of a graph by another one: memory may be freed at any time, on any thread."""
    before = ctypes.c_int()
    mode = ctypes.c_int(RELAXED)
    exchange = getattr(_library(), "cudaThreadExchangeStreamCaptureMode", lambda _: 0)  # stand-ins capture nothing
    _call("cudaGetDevice", ctypes.byref(before))
    _call("cudaSetDevice", ctypes.c_int(index))
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))  # what it was before
        _call("cudaSetDevice", before)


def device_count() -> tuple[int, int]:
    """CUDA's error code (0: none), and the number of devices that this process sees."""
    count = ctypes.c_int()
    return int(_library().cudaGetDeviceCount(ctypes.byref(count))), count.value


def free_and_total(index: int) -> tuple[int, int]:
    """Bytes of a device's memory that no process uses, and all its bytes (cudaMemGetInfo)."""
    free = ctypes.c_size_t()
    total = ctypes.c_size_t()
    with on_device(index):
        _call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def allocate(index: int, size: int) -> int:
    """Allocates `size` bytes, set to 0, and returns their address. Raises OutOfMemory."""
    address = ctypes.c_void_p()
    with on_device(index):
        _call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
        _call("cudaMemset", address, ctypes.c_int(0), ctypes.c_size_t(size))
        _call("cudaStreamSynchronize", None)  # steps run on streams that would not wait for it
    return int(address.value or 0)


def free(index: int, address: int) -> None:
    """Frees what `allocate` returned."""
    with on_device(index):
        _call("cudaFree", ctypes.c_void_p(address))


def copy(index: int, target: int, source: int, size: int, kind: int) -> None:
    """Copies `size` bytes between host and device. kind: TO_DEVICE or FROM_DEVICE. When it returns, the source may
    change. If the host's memory is pinned, the bytes are there on return; otherwise after `wait`."""
    with on_device(index):
        _call("cudaMemcpy", ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), ctypes.c_int(kind))


def copy_lines(index: int, target: int, source: int, pitches: tuple[int, int], lines: int, length: int) -> None:
    """Copies lines of `length` bytes on the device. pitches: bytes from one line to the next, in target and source.
    They are there after `wait`."""
    to = ctypes.c_void_p(target)
    at = ctypes.c_void_p(source)
    size = ctypes.c_size_t
    widths = size(pitches[0]), at, size(pitches[1]), size(length), size(lines)
    with on_device(index):
        _call("cudaMemcpy2DAsync", to, *widths, ctypes.c_int(ON_DEVICE), None)


def wait(index: int) -> None:
    """Waits until the bytes of `copy` and `copy_lines` are there."""
    with on_device(index):
        _call("cudaStreamSynchronize", None)


def allocate_pinned(index: int, size: int) -> int:
    """Allocates memory of the host from and to which a device copies directly. Returns its address."""
    address = ctypes.c_void_p()
    with on_device(index):
        _call("cudaMallocHost", ctypes.byref(address), ctypes.c_size_t(size))
    return int(address.value or 0)


def free_pinned(index: int, address: int) -> None:
    """Frees what `allocate_pinned` returned."""
    with on_device(index):
        _call("cudaFreeHost", ctypes.c_void_p(address))
