"""Memory of the decoder's caches on a CPU, as the graph sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
}


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is at least `value`."""
    return -(-value // step) * step


class Buffer:
    """Memory of one layer and side, seen as the graph's input: sentences first, and one other axis that grows. It is
    kept when the shape changes; what has never been written is 0, what is no longer used stays as it was."""

    def __init__(self, graph_input: Any, axis: str) -> None:
        """`axis` names the axis that grows, in the shape of `graph_input`."""
        self.axis = graph_input.shape.index(axis)
        self._memory = np.zeros(0, TYPES[graph_input.type])
        fixed = [size if isinstance(size, int) else 0 for size in graph_input.shape]
        self.view: npt.NDArray[Any] = self._memory.reshape(fixed)

    @property
    def heads(self) -> int:
        """H_l."""
        return int(self.view.shape[1])

    @property
    def room(self) -> tuple[int, int]:
        """Sentences, and length of the other axis."""
        return self.view.shape[0], self.view.shape[self.axis]

    def write(self, start: int, values: npt.NDArray[Any]) -> None:
        """Sentences from `start` on become `values`, whose growing axis may be shorter."""
        short: list[slice] = [slice(None)] * values.ndim
        short[0], short[self.axis] = slice(start, start + len(values)), slice(values.shape[self.axis])
        self.view[tuple(short)] = values

    def resize(self, sentences: int, length: int, held: int) -> None:
        """Gives it `room`; the first `held` sentences stay as far as they fit."""
        kept = np.take(self.view[:held], range(min(self.room[1], length)), self.axis)
        shape = list(self.view.shape)
        shape[0], shape[self.axis] = sentences, length
        size = int(np.prod(shape))
        if size > self._memory.size:
            self._memory = np.zeros(size, self._memory.dtype)
        self.view = self._memory[:size].reshape(shape)
        self.write(0, kept)

    def move(self, to: Rows, source: Rows) -> None:
        """Sentences `to` become what sentences `source` are."""
        self.view[to] = self.view[source]


def bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
