"""The caches of one mode on a device: two pools of memory, in which every geometry has addresses of its own for ever.

A geometry and those to which it can grow lie in different pools (`Geometry.pool`), so caches grow by copies from one
pool into the other, on the device. Geometries of the same pool may share memory, because a batch has one at a time:
caches then find what another geometry left there. Masks hide keys and values of any ordinary size, but not the -10 000
of masks themselves (`MASKED`), read as a key. So arrays that are filled with such a number (`CacheShape.fill`) have
memory of their own. Memory is taken when a geometry is first used, and given back by `close`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from hmc.artifact.rounding import round_up
from hmc.engine.caches.geometry import Geometry
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.memory.account import LevelMemory
from hmc.engine.runtime.memory.blocks import ALIGNMENT, DeviceBlock
from hmc.engine.runtime.memory.views import DeviceArray, copy_into_larger, fill, item_bytes

GROWING_AXES = ("S", "T", "N")
"""Axes that differ between geometries, beside the first, which counts slots."""
ON_HOST = ("candidates", "total_length")
"""Inputs of decoder graphs that operators read on the host: they are no arrays of the device."""
MASKED = -1e4
"""Added to attention scores of positions that a row does not see: gives a weight of 0, and 16 bits can hold it."""


@dataclass(frozen=True)
class CacheShape:
    """The shape of a cache as the graph names it, such as `[B, 8, S, 64]`, and its element type."""

    type: str
    axes: tuple[str | int, ...]
    fill: float = 0.0
    """The value of elements that growth adds, if it is not 0. Where it is 0, masks hide what lies there."""

    def at(self, geometry: Geometry, slots: int) -> tuple[int, ...]:
        """The shape with so many slots of a geometry."""
        return tuple(geometry.size_of(axis, slots) for axis in self.axes)

    @property
    def growing(self) -> int:
        """Index of the axis that grows."""
        return next(i for i, axis in enumerate(self.axes) if axis in GROWING_AXES)


class Pools:
    """The memory of a mode's caches: keys and values by the names of the graph's inputs."""

    def __init__(self, caches: Mapping[str, CacheShape], memory: LevelMemory) -> None:
        """memory: the account that the bytes are taken from."""
        self.caches = dict(caches)
        self.memory = memory
        self._blocks: dict[tuple[int, bool], list[DeviceBlock]] = {key: [] for key in product((0, 1), (False, True))}
        """(pool, whether for arrays that are filled) → its memory."""
        self._views: dict[Geometry, dict[str, DeviceArray]] = {}

    @property
    def bytes(self) -> int:
        """Of the device, held now."""
        return sum(block.size for block in chain.from_iterable(self._blocks.values()))

    def views(self, geometry: Geometry) -> dict[str, DeviceArray]:
        """All slots of all caches in a geometry. Takes memory if the geometry is new; raises FailedPreconditionError if
        there is too little."""
        if geometry not in self._views:
            self._views[geometry] = self._reserve(geometry)
        return self._views[geometry]

    def take_all(self, geometries: Iterable[Geometry]) -> None:
        """Takes memory for all of these geometries, so that steps take none later. Raises FailedPreconditionError."""
        for geometry in sorted(geometries, key=lambda geometry: -self._layout(geometry, filled=False)[1]):
            self.views(geometry)

    def move(self, source: Geometry, target: Geometry, slots: Sequence[tuple[int, int]] = ()) -> None:
        """Copies the caches from a geometry into a larger one of the other pool, on the device. Slots keep their
        numbers, as far as both geometries have them. slots: (slot in source, slot in target) of further sentences,
        whose numbers change.

        No step that uses the caches may still run. Behind the copied lengths are numbers from other geometries. They
        are finite, and masks hide them.
        """
        assert source.pool != target.pool
        kept = min(source.slots, target.slots)
        present = self.views(source)
        into = self.views(target)
        for name, shape in self.caches.items():
            if shape.fill:
                fill(into[name], shape.fill)
            copy_into_larger(present[name].slots(kept), into[name].slots(kept), shape.growing)
            for old, new in slots:
                copy_into_larger(present[name].slots(1, old), into[name].slots(1, new), shape.growing)
        self._wait()

    def clean(self, geometry: Geometry, slots: Sequence[int]) -> None:
        """Sets the caches of some slots to 0, and the pool in which the present geometry does not lie: a failed
        sentence may have left NaN there, which masks do not hide because they multiply by 0. No step that uses the
        caches may still run.
        """
        for name, shape in self.caches.items():
            for slot in () if shape.fill else slots:
                fill(self.views(geometry)[name].slots(1, slot), 0.0)
        for block in self._blocks[1 - geometry.pool, False]:
            block.write(np.zeros(block.size, np.uint8))

    def close(self) -> None:
        """Gives all memory back. No run that is bound to this memory may follow."""
        for blocks in self._blocks.values():
            blocks.clear()
        self._views.clear()

    def _reserve(self, geometry: Geometry) -> dict[str, DeviceArray]:
        """Places a geometry into the smallest blocks of its pool that are large enough, or into new ones."""
        views = {}
        for filled in (False, True):
            offsets, needed = self._layout(geometry, filled=filled)
            blocks = self._blocks[geometry.pool, filled]
            fitting = [block for block in blocks if block.size >= needed]
            if offsets and not fitting:
                fitting = [DeviceBlock(self.memory, needed, "caches")]
                blocks += fitting
            for name, offset in offsets.items():
                shape = self.caches[name]
                address = min(fitting, key=lambda block: block.size).address
                dims = shape.at(geometry, geometry.slots)
                views[name] = DeviceArray(self.memory.device, shape.type, dims, address + offset)
        return views

    def _layout(self, geometry: Geometry, *, filled: bool) -> tuple[dict[str, int], int]:
        """Where in a geometry's memory each cache begins, and its bytes; of the caches that are filled, or of the
        others."""
        offsets = {}
        at = 0
        for name, shape in self.caches.items():
            if bool(shape.fill) == filled:
                offsets[name] = at
                at += round_up(math.prod(shape.at(geometry, geometry.slots)) * item_bytes(shape.type), ALIGNMENT)
        return offsets, at

    def _wait(self) -> None:
        if self.memory.device.kind != "cpu":
            cuda_calls.wait(self.memory.device.index)
