"""Memory of the decoder's caches on a device, as the graph sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnxruntime import IOBinding, OrtValue

from hmc.serving.sessions import Device

ELEMENTS: dict[str, tuple[int, Any]] = {
    "tensor(float)": (1, np.float32),
    "tensor(uint8)": (2, np.uint8),
    "tensor(int8)": (3, np.int8),
    "tensor(int32)": (6, np.int32),
    "tensor(int64)": (7, np.int64),
    "tensor(float16)": (10, np.float16),
    "tensor(bfloat16)": (16, np.uint16),
}
"""Type of a graph's input → ONNX's number for it, and the NumPy type in which the host holds its bytes."""


class DeviceBuffer:
    """Memory of one layer and side: slots first, and one other axis that grows. A slot never moves.

    What has never been written is 0: a number that nobody attends to still is multiplied by 0.
    """

    def __init__(self, graph_input: Any, axis: str, device: Device) -> None:
        """`axis` names the axis that grows, in the shape of `graph_input`."""
        self.name, self.device = graph_input.name, device
        self._element, self._dtype = ELEMENTS[graph_input.type]
        self._axis = graph_input.shape.index(axis)
        self.shape = [size if isinstance(size, int) else 0 for size in graph_input.shape]
        self._memory: OrtValue | None = None
        self._slot_bytes = 0

    @property
    def heads(self) -> int:
        """H_l."""
        return int(self.shape[1])

    def resize(self, slots: int, length: int, *, keep: bool) -> bool:
        """Gives it at least so many slots, of this length; True where it is other memory now, or laid out anew.

        keep: what slots hold stays. It goes through the host, so slots and length should seldom grow.
        """
        shape = list(self.shape)
        shape[0], shape[self._axis] = max(slots, self.shape[0]), length
        if shape == self.shape:
            return False
        held = self._memory.numpy() if keep and self._memory is not None else None
        if held is None and self._memory is not None and np.prod(shape) <= self._memory.shape()[0]:
            fresh = self._memory
        else:
            host = np.zeros(shape, self._dtype)
            if held is not None:
                old = held[: int(np.prod(self.shape))].reshape(self.shape)
                host[tuple(map(slice, self.shape))] = old
            fresh = OrtValue.ortvalue_from_numpy(host.reshape(-1), self.device.kind, self.device.index)
        self._memory, self.shape = fresh, shape
        self._slot_bytes = int(np.prod(shape[1:])) * np.dtype(self._dtype).itemsize
        return True

    def bind_input(self, binding: IOBinding, name: str, slots: int) -> None:
        """The first `slots` slots as the input `name`."""
        binding.bind_input(name, *self._place(0, slots))

    def bind_output(self, binding: IOBinding, name: str, slots: int, first: int = 0) -> None:
        """`slots` slots from `first` on as the output `name`, which is written there."""
        binding.bind_output(name, *self._place(first, slots))

    def _place(self, first: int, slots: int) -> tuple[str, int, int, list[int], int]:
        """Device, type, shape and address, as bindings take them."""
        assert self._memory is not None
        address = self._memory.data_ptr() + first * self._slot_bytes
        return self.device.kind, self.device.index, self._element, [slots, *self.shape[1:]], address


class DeviceArray:
    """One input or output of a step: memory of a fixed address and shape."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, device: Device) -> None:
        self._written: npt.NDArray[Any] = np.zeros(shape, dtype)
        self.value = OrtValue.ortvalue_from_numpy(self._written.copy(), device.kind, device.index)

    def write(self, array: npt.NDArray[Any]) -> None:
        """Copies from the host, unless it is there already."""
        if not np.array_equal(array, self._written):
            self._written = np.array(array, self._written.dtype, order="C")
            self.value.update_inplace(self._written)

    def read(self) -> npt.NDArray[Any]:
        """Copies to the host."""
        value: npt.NDArray[Any] = self.value.numpy()
        return value
