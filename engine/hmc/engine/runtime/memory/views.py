"""Arrays at addresses of a device, and what is done to them there: binding, filling, copying into larger ones."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnxruntime import IOBinding

from hmc.artifact.element_types import BY_RUNTIME
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory import cuda_calls


@dataclass(frozen=True)
class DeviceArray:
    """An array at an address of a device, as a binding takes it. It does not keep the memory."""

    device: Device
    type: str
    """Element type, as ONNX Runtime names it."""
    shape: tuple[int, ...]
    address: int

    @property
    def bytes(self) -> int:
        """Of all elements."""
        return math.prod(self.shape) * item_bytes(self.type)

    def slots(self, count: int, first: int = 0) -> DeviceArray:
        """`count` entries of the first axis, from `first` on."""
        size = self.bytes // max(self.shape[0], 1)
        return DeviceArray(self.device, self.type, (count, *self.shape[1:]), self.address + first * size)

    def bind_input(self, binding: IOBinding, name: str) -> None:
        """The graph reads its input `name` from here."""
        binding.bind_input(name, *self._place())

    def bind_output(self, binding: IOBinding, name: str) -> None:
        """The graph writes its output `name` here."""
        binding.bind_output(name, *self._place())

    def _place(self) -> tuple[str, int, int, list[int], int]:
        return self.device.kind, self.device.index, BY_RUNTIME[self.type].number, list(self.shape), self.address


def item_bytes(kind: str) -> int:
    """Bytes of one element; kind: its type, as ONNX Runtime names it."""
    return BY_RUNTIME[kind].bits // 8


def bytes_at(address: int, size: int) -> npt.NDArray[np.uint8]:
    """Memory of the host as an array, which does not keep it."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def fill(view: DeviceArray, value: float) -> None:
    """Sets all elements to a number."""
    number: float = value
    if view.type == "tensor(bfloat16)":  # the upper half of a float of 32 bits
        number = int(np.float32(value).view(np.uint32) >> 16)
    values = np.full(view.shape, number, BY_RUNTIME[view.type].host)
    if view.device.kind == "cpu":
        bytes_at(view.address, view.bytes)[:] = values.reshape(-1).view(np.uint8)
    else:
        index = view.device.index
        cuda_calls.copy(index, view.address, values.ctypes.data, view.bytes, cuda_calls.TO_DEVICE)
        cuda_calls.wait(index)


def copy_into_larger(source: DeviceArray, target: DeviceArray, axis: int) -> None:
    """Copies an array into a larger one, whose axis `axis` is longer. The other elements of the larger array do not
    change. All other axes have the same size, and axes after it too. On a device the copy has ended after
    `cuda_calls.wait`."""
    item = item_bytes(source.type)
    length, pitch = (math.prod(view.shape[axis:]) * item for view in (source, target))
    lines = math.prod(source.shape[:axis])
    copy_lines(source.device, target.address, source.address, (pitch, length), lines, length)


def copy_lines(device: Device, target: int, source: int, pitches: tuple[int, int], lines: int, length: int) -> None:
    """Copies lines of `length` bytes from one address of a device to another. pitches: bytes from one line to the next,
    in target and source, at least `length` each. On a device the copy has ended after `cuda_calls.wait`."""
    if device.kind == "cpu":
        into, content = (
            np.lib.stride_tricks.as_strided(bytes_at(at, length), (lines, length), (pitch, 1))
            for at, pitch in zip((target, source), pitches, strict=True)
        )
        into[:] = content
    else:
        cuda_calls.copy_lines(device.index, target, source, pitches, lines, length)
