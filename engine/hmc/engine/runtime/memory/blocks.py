"""Blocks of a device's memory, and tensors in them that ONNX Runtime takes as inputs, outputs and weights.

A tensor reaches ONNX Runtime as a DLPack capsule (https://dmlc.github.io/dlpack), whose deleter gives its block up. So
a block is freed when its last user is gone, be it a caller or a session, and its bytes return to the device at once.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime import OrtValue

from hmc.artifact.element_types import BY_NUMBER
from hmc.artifact.rounding import round_up
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.memory.account import Account, Reservation

ALIGNMENT = 256
"""Bytes to which blocks begin, as CUDA's own."""


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_lent: dict[int, tuple[object, ...]] = {}
"""Address of a capsule's struct → what must live as long as the tensor: the struct, its shape and the block."""


def _give_up(managed: int, lent: dict[int, tuple[object, ...]] = _lent) -> None:
    """The deleter of every capsule. ONNX Runtime calls it from any thread."""
    lent.pop(managed, None)


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_give_up)


class DeviceBlock:
    """Memory of a device, set to 0 at first. It is freed when no reference to it or to a tensor in it is left."""

    def __init__(self, memory: Account, size: int, what: str, reservation: Reservation | None = None) -> None:
        """size: bytes. what: their purpose, see `Account.reserve`. reservation: of these bytes, made earlier; the
        block takes it over and releases it. None: it reserves them now.

        Raises FailedPreconditionError if the budget or the device has too little memory.
        """
        self.device = memory.device
        self.size = size
        reserved = reservation or memory.reserve(size, what)
        try:
            self.address, owner = _allocated(memory.device, max(size, 1))
        except cuda_calls.OutOfMemory:
            reserved.release()
            raise memory.refusal(size, what) from None
        except BaseException:
            reserved.release()
            raise
        weakref.finalize(self, _free, self.device, self.address, owner, reserved).atexit = False

    def tensor(self, shape: tuple[int, ...], element_type: int, offset: int = 0) -> OrtValue:
        """A tensor at `offset` bytes from the block's beginning, which keeps the block alive.

        element_type: its number in ONNX. Raises ValueError if it does not lie within the block.
        """
        element = BY_NUMBER[element_type]
        if not 0 <= offset <= self.size - math.prod(shape) * element.bits // 8:
            raise ValueError(f"a tensor {shape} at {offset} does not fit into a block of {self.size} bytes")
        dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        device = _Device(1, 0) if self.device.kind == "cpu" else _Device(2, self.device.index)
        tensor = _Tensor(
            self.address + offset, device, len(shape), _Type(element.dlpack, element.bits, 1), dims, None, 0
        )
        managed = _Managed(tensor, None, ctypes.cast(_DELETER, ctypes.c_void_p))
        place = ctypes.addressof(managed)
        _lent[place] = (managed, dims, self)
        try:
            return OrtValue.from_dlpack(_capsule(place))
        except BaseException:
            _lent.pop(place, None)
            raise

    def write(self, content: npt.NDArray[Any], offset: int = 0) -> None:
        """Copies a contiguous array from the host to `offset`."""
        assert content.flags.c_contiguous
        assert offset + content.nbytes <= self.size
        if self.device.kind == "cpu":
            ctypes.memmove(self.address + offset, content.ctypes.data, content.nbytes)
        else:
            place = self.address + offset
            cuda_calls.copy(self.device.index, place, content.ctypes.data, content.nbytes, cuda_calls.TO_DEVICE)
            cuda_calls.wait(self.device.index)

    def read(self, size: int | None = None, offset: int = 0) -> npt.NDArray[np.uint8]:
        """Copies `size` bytes (None: all) from `offset` to the host."""
        content = np.zeros(self.size - offset if size is None else size, np.uint8)
        assert offset + content.nbytes <= self.size
        if self.device.kind == "cpu":
            ctypes.memmove(content.ctypes.data, self.address + offset, content.nbytes)
        else:
            place = self.address + offset
            cuda_calls.copy(self.device.index, content.ctypes.data, place, content.nbytes, cuda_calls.FROM_DEVICE)
        return content


def _allocated(device: Device, size: int) -> tuple[int, object]:
    """Address of new memory, and what keeps it (on the host)."""
    if device.kind == "cpu":
        host = np.zeros(size + ALIGNMENT, np.uint8)
        return round_up(host.ctypes.data, ALIGNMENT), host
    return cuda_calls.allocate(device.index, size), None


def _free(device: Device, address: int, _owner: object, reserved: Reservation) -> None:
    if device.kind != "cpu":
        cuda_calls.free(device.index, address)
    reserved.release()


def _capsule(place: int) -> object:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(place, b"dltensor", None)
