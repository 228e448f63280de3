"""Arrays of searches in the graph whose sizes do not depend on the geometry of the caches. They keep their addresses
for ever, and an output `next_X` of a step has the memory of the input `X`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hmc.serving.arrays import round_up
from hmc.serving.runtime.memory.account import LevelMemory
from hmc.serving.runtime.memory.blocks import ALIGNMENT, DeviceBlock
from hmc.serving.runtime.memory.mirrored import MirroredArrays, arrangement_bytes
from hmc.serving.runtime.memory.views import View

WRITTEN = ("limits", "minimums", "penalties", "fresh", "source_lengths")
"""Inputs that the host writes, for all slots together, when sentences join or are cancelled."""
READ = ("done", "lengths")
"""Inputs that the host reads. It also reads the output `report`."""


class SearchArrays:
    """Their memory: one block for those that the host writes or reads, with a mirror, and one for all others."""

    def __init__(self, inputs: Iterable[Any], sizes: Mapping[str, int], memory: LevelMemory) -> None:
        """inputs: of the graph, as an ONNX Runtime session gives them. sizes: of the axes B, k and P. Raises
        FailedPreconditionError if the device has too little memory."""
        shapes = {i.name: (i.type, [sizes.get(axis, axis) for axis in i.shape]) for i in inputs}
        mirrored = {name: shapes.pop(name) for name in (*WRITTEN, *READ) if name in shapes}
        mirrored["report"] = "tensor(int32)", [2]
        self.mirror = MirroredArrays(memory, arrangement_bytes(mirrored), "searches")
        self.views = self.mirror.arrange(mirrored)
        """Name → all slots of the array."""
        self._block = DeviceBlock(memory, arrangement_bytes(shapes), "searches")
        at = self._block.address
        for name, (kind, shape) in shapes.items():
            self.views[name] = View(memory.device, kind, tuple(shape), at)
            at += round_up(self.views[name].bytes, ALIGNMENT)
