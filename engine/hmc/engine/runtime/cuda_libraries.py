"""Whether CUDA can be used here, and if not, exactly what is missing and how to install it."""

from __future__ import annotations

import ctypes
import io
import logging
import sys
import threading
from contextlib import redirect_stdout
from dataclasses import dataclass

import numpy as np
import onnxruntime

from hmc.engine.runtime.memory import cuda_calls

log = logging.getLogger(__name__)

CUDA = "CUDAExecutionProvider"
INSTALL = "pip install 'onnxruntime-gpu[cuda,cudnn]'"
"""Installs every library of `required_libraries` but the driver."""
NO_DEVICE = 100
DRIVER_TOO_OLD = 35
"""cudaErrorNoDevice and cudaErrorInsufficientDriver (driver_types.h)."""
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@dataclass(frozen=True)
class Library:
    """A library that ONNX Runtime's CUDA provider loads."""

    file: str
    title: str
    package: str
    """Its package on PyPI."""


def required_libraries() -> list[Library]:
    """The libraries that the CUDA provider needs, for the CUDA version that ONNX Runtime was built for. It is linked
    with all of them but cuDNN, which it loads with its first session."""
    cuda = cuda_calls.cuda_major()
    known = (
        ("cudart", cuda, "the CUDA runtime", "nvidia-cuda-runtime"),
        ("cublasLt", cuda, "cuBLASLt", "nvidia-cublas"),
        ("cublas", cuda, "cuBLAS", "nvidia-cublas"),
        ("curand", "10", "cuRAND", "nvidia-curand"),
        ("cudnn", "9", "cuDNN", f"nvidia-cudnn-cu{cuda}"),
    )
    file = "{}64_{}.dll" if sys.platform == "win32" else "lib{}.so.{}"
    return [Library(file.format(name, major), title, package) for name, major, title, package in known]


def cuda_problem(index: int = 0) -> str | None:
    """Why ONNX Runtime cannot use a CUDA device, and what to do about it. None: it can, which was tried.

    index: of the device.
    """
    if CUDA not in onnxruntime.get_available_providers():
        return f"this ONNX Runtime is built without CUDA; pip uninstall onnxruntime onnxruntime-gpu, and then {INSTALL}"
    with _probing:
        problem = _missing() or _device_problem(index)
        if problem is not None:
            return problem
        try:
            with cuda_calls.on_device(index):  # levels that are loaded may capture graphs meanwhile
                onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32), "cuda", index)
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises types of its own; any means that it cannot
            return f"ONNX Runtime cannot use cuda:{index} ({str(error).strip()}); its log says why"
    return None


_probing = threading.Lock()


def _missing() -> str | None:
    """Names the driver or the libraries that cannot be loaded. Loads all others."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError as error:
        return (
            f"the NVIDIA driver is missing ({error}); install the driver, or start the container with GPU access "
            "(`docker run --gpus all`); `nvidia-smi` shows whether it works"
        )
    printed = io.StringIO()
    with redirect_stdout(printed):  # ONNX Runtime prints what it does not find; the libraries are named below
        onnxruntime.preload_dlls()
    if printed.getvalue():
        log.debug("onnxruntime.preload_dlls: %s", printed.getvalue().strip())
    absent: list[tuple[Library, OSError]] = []
    for library in required_libraries():
        try:
            ctypes.CDLL(library.file)
        except OSError as error:
            absent.append((library, error))
    if not absent:
        return None
    named = "; ".join(f"{library.title} is missing ({error})" for library, error in absent)
    packages = " ".join(dict.fromkeys(library.package for library, _ in absent))
    return f"{named}; install {packages}: {INSTALL}, or make LD_LIBRARY_PATH name the folder that has it"


def _device_problem(index: int) -> str | None:
    code, count = cuda_calls.device_count()
    if code == NO_DEVICE or (code == 0 and count == 0):
        return (
            "the NVIDIA driver is installed but shows this process no GPU; check `nvidia-smi`, "
            "CUDA_VISIBLE_DEVICES, and a container's GPU access (`docker run --gpus all`)"
        )
    if code == DRIVER_TOO_OLD:
        return (
            f"the NVIDIA driver is too old for CUDA {cuda_calls.cuda_major()}, for which this ONNX Runtime is built; "
            "update the driver"
        )
    if code:
        return f"the CUDA runtime cannot start: {cuda_calls.error_text(code)} (error {code}); check `nvidia-smi`"
    if index >= count:
        visible = "cuda:0 alone" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        return f"there is no cuda:{index}; this process sees {visible} (CUDA_VISIBLE_DEVICES can hide others)"
    return None
