"""Memory of the decoder's caches on a CPU, as the graph sees it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.arrays import DTYPES, Ints


class HostBuffer:
    """One cache: the keys or the values of one layer. The first axis counts sentences, one other axis grows.

    New memory is 0. A smaller shape frees no memory, and dropped sentences are not overwritten. What is written is
    followed by 0 up to the capacity, whatever an earlier sentence left there: masks do not hide NaN.
    """

    def __init__(self, graph_input: Any, axis: str) -> None:
        """axis: the name of the axis that grows, in the shape of `graph_input`."""
        self._axis = graph_input.shape.index(axis)
        self._memory = np.zeros(0, DTYPES[graph_input.type])
        fixed = [size if isinstance(size, int) else 0 for size in graph_input.shape]
        self.view: npt.NDArray[Any] = self._memory.reshape(fixed)

    @property
    def capacity(self) -> tuple[int, int]:
        """Sentences, and length of the axis that grows."""
        return self.view.shape[0], self.view.shape[self._axis]

    def write(self, start: int, values: npt.NDArray[Any]) -> None:
        """Writes sentences from `start` on. Where the growing axis of `values` is shorter than the buffer's, the rest
        becomes 0."""
        part: list[slice] = [slice(None)] * values.ndim
        length = values.shape[self._axis]
        part[0], part[self._axis] = slice(start, start + len(values)), slice(length)
        self.view[tuple(part)] = values
        part[self._axis] = slice(length, None)
        self.view[tuple(part)] = 0

    def resize(self, sentences: int, length: int, used: int) -> None:
        """Sets the capacity. The first `used` sentences stay, cut to `length`."""
        kept = np.take(self.view[:used], range(min(self.capacity[1], length)), self._axis) if used else None
        shape = list(self.view.shape)
        shape[0], shape[self._axis] = sentences, length
        size = math.prod(shape)
        if size > self._memory.size:
            self._memory = np.zeros(size, self._memory.dtype)
        self.view = self._memory[:size].reshape(shape)
        if kept is not None:
            self.write(0, kept)

    def move(self, to: Ints, source: Ints) -> None:
        """Copies sentences `source` to the indices `to`."""
        self.view[to] = self.view[source]


def bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    """The graph reads its input `name` from the array's memory."""
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    """The graph writes its output `name` into the array's memory."""
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
