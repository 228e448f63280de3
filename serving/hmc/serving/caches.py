"""Decoder caches on a CPU: one growing buffer per layer and side, written in place, rows moved only when they must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.sessions import Arrays, Device

Rows = npt.NDArray[np.int64]
ROUND_SOURCE, ROUND_TARGET = 16, 32
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is at least `value`."""
    return -(-value // step) * step


class HostCaches:
    """Sentences 0 … N-1 with k rows each, as a prefix of every buffer. Past and present are the same memory.

    Self-attention buffers are `[rows, H_l, T, D]`, cross buffers `[sentences, H_l, S, D]`; both grow by doubling.
    """

    def __init__(self, session: Any, device: Device, head_dim: int, beam: int) -> None:  # noqa: ARG002 - as DeviceCaches
        self.session, self.beam = session, beam
        self.count, self.room = 0, ROUND_TARGET
        self.inputs = {i.name: i for i in session.get_inputs()}
        self.outputs = {o.name: o for o in session.get_outputs() if not o.name.startswith("present_")}
        shapes = {n: i.shape for n, i in self.inputs.items()}
        self.own: Arrays = {
            n: np.zeros((0, s[1], self.room, head_dim), np.float32) for n, s in shapes.items() if n.startswith("past_")
        }
        self.cross: Arrays = {
            n: np.zeros((0, s[1], 0, head_dim), np.float32) for n, s in shapes.items() if n.startswith("cross_")
        }
        self.source_lengths = np.zeros(0, np.int32)
        self._binding: Any = None
        self._bound: Arrays = {}
        self._free: list[str] = []

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32]) -> None:
        """Appends sentences with their cross keys and values `[B, H_l, S, D]`."""
        new, start = len(lengths), self.count
        if not start:
            self._forget_lengths()
        self._reserve(start + new, round_up(int(lengths.max()), ROUND_SOURCE))
        for name, value in cross.items():
            self.cross[name][start : start + new, :, : value.shape[2]] = value
        self.source_lengths[start : start + new] = lengths
        self.count += new
        self._binding = None

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the rest is dropped."""
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        if moved:
            to, source = (np.array(side, np.int64) for side in zip(*moved, strict=True))
            for buffer in self.cross.values():
                buffer[to] = buffer[source]
            self.source_lengths[to] = self.source_lengths[source]
            self._move(self._rows(to), self._rows(source), self.room)
        self.count = len(order)
        self._binding = None

    def reorder(self, parents: Rows, length: int) -> None:
        """Row r continues row parents[r]; only the first `length` positions are worth moving."""
        to = np.flatnonzero(parents != np.arange(len(parents)))
        if len(to):
            self._move(to, parents[to], length)

    def run(self, step: Arrays) -> Arrays:
        """One decoder step of all rows. `step` holds the graph's inputs but caches and source lengths, `[R]` or
        `[R, …]` each, and `candidates`; the answer its outputs but caches. Both are valid until the next step."""
        longest = int(step["lengths"].max()) + 1
        if longest > self.room:
            self._grow_target(longest)
        step = {**step, "total_length": np.array([longest], np.int32)}
        if self._binding is None or any(self._bound[n].shape != step[n].shape for n in self._free):
            self._bind(step)
        for name in self._free:
            self._bound[name][:] = step[name]
        if self._bound["candidates"][0] != step["candidates"][0]:
            self._bind_outputs(int(step["candidates"][0]))
        self.session.run_with_iobinding(self._binding)
        return {name: self._bound[name] for name in self.outputs}

    # -- memory --------------------------------------------------------------------------------------------------

    def _rows(self, sentences: Rows) -> Rows:
        return (sentences[:, None] * self.beam + np.arange(self.beam)).reshape(-1)

    def _move(self, to: Rows, source: Rows, length: int) -> None:
        for buffer in self.own.values():
            buffer[to, :, :length] = buffer[source, :, :length]

    def _reserve(self, sentences: int, source_room: int) -> None:
        capacity = len(self.source_lengths)
        if sentences > capacity:
            capacity = max(sentences, 2 * capacity)
            self.source_lengths = _grown(self.source_lengths, 0, capacity)
            self.own = {n: _grown(b, 0, capacity * self.beam) for n, b in self.own.items()}
            self.cross = {n: _grown(b, 0, capacity) for n, b in self.cross.items()}
        if any(b.shape[2] < source_room for b in self.cross.values()):
            self.cross = {n: _grown(b, 2, source_room) for n, b in self.cross.items()}

    def _forget_lengths(self) -> None:
        """Nothing is held: room for long sentences that are gone would only slow the next ones down."""
        self.room = ROUND_TARGET
        self.own = {n: np.zeros((b.shape[0], b.shape[1], self.room, b.shape[3]), b.dtype) for n, b in self.own.items()}
        self.cross = {n: np.zeros((b.shape[0], b.shape[1], 0, b.shape[3]), b.dtype) for n, b in self.cross.items()}

    def _grow_target(self, longest: int) -> None:
        self.room = max(2 * self.room, round_up(longest, ROUND_TARGET))
        self.own = {n: _grown(b, 2, self.room) for n, b in self.own.items()}
        self._binding = None

    def _bind(self, step: Arrays) -> None:
        rows = self.count * self.beam
        self._free = [n for n in self.inputs if n in step and n != "candidates"]
        self._bound = {n: np.array(step[n]) for n in self._free}
        self._bound["candidates"] = np.zeros(1, np.int64)
        binding = self.session.io_binding()
        for name, array in self._bound.items():
            _bind_input(binding, name, array)
        if "source_lengths" in self.inputs:
            _bind_input(binding, "source_lengths", self.source_lengths[: self.count])
        for name, buffer in self.cross.items():
            _bind_input(binding, name, buffer[: self.count])
        for name, buffer in self.own.items():
            _bind_input(binding, name, buffer[:rows])
            _bind_output(binding, name.replace("past_", "present_"), buffer[:rows])
        self._binding = binding

    def _bind_outputs(self, candidates: int) -> None:
        source_room = max((b.shape[2] for b in self.cross.values()), default=0)
        sizes = {"R": self.count * self.beam, "B": self.count, "k": self.beam, "K": candidates, "S": source_room}
        self._bound["candidates"][0] = candidates
        for name, output in self.outputs.items():
            shape = [sizes.get(size, size) for size in output.shape]
            self._bound[name] = np.zeros(shape, TYPES[output.type])
            _bind_output(self._binding, name, self._bound[name])


def _grown(array: npt.NDArray[Any], axis: int, size: int) -> npt.NDArray[Any]:
    """A copy with `axis` enlarged to `size`, zeros in the new part."""
    shape = list(array.shape)
    shape[axis] = size
    grown = np.zeros(shape, array.dtype)
    grown[tuple(slice(0, n) for n in array.shape)] = array
    return grown


def _bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
