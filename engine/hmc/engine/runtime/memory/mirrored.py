"""Small arrays of a device that the host writes or reads together: inputs and outputs of steps, state of searches.

Host and device do not wait for each other by themselves: ONNX Runtime's sessions run on streams of their own, and the
copies here on the default stream. Before the host reads what a step wrote, or overwrites what a step may still read,
that step must have ended (`BoundStep.run(wait=True)` or `BoundStep.wait`). Copies have ended when the call returns.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from hmc.artifact.rounding import round_up
from hmc.engine.arrays import DTYPES
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.memory.account import LevelMemory
from hmc.engine.runtime.memory.blocks import ALIGNMENT, DeviceBlock
from hmc.engine.runtime.memory.views import DeviceArray, bytes_at, item_bytes

Arrangement = Mapping[str, tuple[str, Sequence[int]]]
"""Name → element type, as ONNX Runtime names it, and shape."""


class MirroredArrays:
    """Arrays of a device, one after the other in one block, and a mirror of the block on the host."""

    def __init__(self, memory: LevelMemory, size: int, what: str) -> None:
        """size: bytes of the largest arrangement (`arrangement_bytes`). what: their purpose, see `Account.reserve`."""
        self.block = DeviceBlock(memory, max(size, ALIGNMENT), what)
        self.size = max(size, ALIGNMENT)
        self.host: dict[str, npt.NDArray[Any]] = {}
        """Name → the host's copy of the array, in the present arrangement."""
        self._pinned = 0
        if self.block.device.kind != "cpu":  # the mirror is pinned: copies are then faster, and end with the call
            index = self.block.device.index
            self._pinned = cuda_calls.allocate_pinned(index, self.size)
            weakref.finalize(self, cuda_calls.free_pinned, index, self._pinned).atexit = False
        self._mirror = bytes_at(self._pinned or self.block.address, self.size)
        self._mirror[:] = 0
        self._spans: dict[str, tuple[int, int]] = {}
        """Name → first byte, and number of bytes."""
        self._used = 0

    def arrange(self, arrays: Arrangement) -> dict[str, DeviceArray]:
        """Lays the arrays out and returns their views. The same arguments give the same views, so bindings to them can
        be kept; an arrangement whose arrays begin with those of another one keeps their places.

        Raises ValueError if they do not fit.
        """
        if arrangement_bytes(arrays) > self.size:
            raise ValueError(f"{arrangement_bytes(arrays)} bytes of arrays do not fit into a block of {self.size}")
        views = {}
        at = 0
        self.host = {}
        self._spans = {}
        for name, (kind, shape) in arrays.items():
            view = DeviceArray(self.block.device, kind, tuple(shape), self.block.address + at)
            views[name] = view
            self._spans[name] = (at, view.bytes)
            self.host[name] = self._mirror[at : at + view.bytes].view(DTYPES[kind]).reshape(view.shape)
            at = round_up(at + view.bytes, ALIGNMENT)
        self._used = min(at, self.size)
        return views

    def write(self, *names: str) -> None:
        """Copies `host` to the device. names: of the arrays that changed; none: all of them, in one copy."""
        for at, size in self._copied_spans(names):
            self._copy(self.block.address + at, self._pinned + at, size, cuda_calls.TO_DEVICE)

    def read(self, *names: str) -> None:
        """Copies from the device to `host`. names: of the arrays that are needed; none: all of them, in one copy."""
        for at, size in self._copied_spans(names):
            self._copy(self._pinned + at, self.block.address + at, size, cuda_calls.FROM_DEVICE)

    def _copied_spans(self, names: Sequence[str]) -> list[tuple[int, int]]:
        if not self._pinned:
            return []
        return [self._spans[name] for name in names] if names else [(0, self._used)]

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        cuda_calls.copy(self.block.device.index, target, source, size, kind)


def arrangement_bytes(arrays: Arrangement) -> int:
    """Bytes that `MirroredArrays.arrange` needs for these arrays."""
    return sum(round_up(math.prod(shape) * item_bytes(kind), ALIGNMENT) for kind, shape in arrays.values())
