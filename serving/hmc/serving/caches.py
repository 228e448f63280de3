"""Decoder caches on a CPU: one growing buffer per layer and side, written in place, never moved by beams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.nodes import Nodes
from hmc.serving.sessions import Arrays, Device

Rows = npt.NDArray[np.int64]
ROUND_SOURCE, ROUND_TARGET = 8, 32
TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
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


class HostCaches:
    """Sentences 0 … N-1 with k rows each, as a prefix of every buffer. Past and present are the same memory.

    Self-attention buffers hold a sentence's nodes (see `Nodes`), cross buffers its source positions.
    """

    def __init__(self, session: Any, device: Device, head_dim: int, beam: int) -> None:  # noqa: ARG002 - as DeviceCaches
        self.session, self.beam, self.count, self.capacity = session, beam, 0, 0
        self.inputs = {i.name: i for i in session.get_inputs()}
        self.outputs = {o.name: o for o in session.get_outputs() if not o.name.startswith("present_")}
        self.own, self.cross = (
            {n: Buffer(i, axis) for n, i in self.inputs.items() if n.startswith(side)}
            for side, axis in (("past_", "N"), ("cross_", "S"))
        )
        self.nodes, self.source_room = Nodes(beam, ROUND_TARGET), ROUND_SOURCE
        self.source_lengths = np.zeros(0, np.int32)
        self._places = np.zeros((0, beam, 0, 3), np.int64)
        self._binding: Any = None
        self._bound: Arrays = {}

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32]) -> None:
        """Appends sentences with their cross keys and values, as the encoder gives them."""
        new, start = len(lengths), self.count
        longest = round_up(int(lengths.max()), ROUND_SOURCE)
        if not start:  # room for long sentences that are gone would only slow the next ones down
            self.nodes, self.source_room = Nodes(self.beam, ROUND_TARGET), longest
        self.source_room = max(self.source_room, longest)
        if start + new > self.capacity:
            self.capacity = max(start + new, 2 * self.capacity)
            self.source_lengths = np.concatenate([self.source_lengths[:start], np.zeros(self.capacity, np.int32)])
        self.nodes.add(new)
        self._fit()
        for name, value in cross.items():
            self.cross[name].write(start, value)
        self.source_lengths[start : start + new] = lengths
        self.count += new
        self._binding = None

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the rest is dropped."""
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        if moved:
            to, source = (np.array(side, np.int64) for side in zip(*moved, strict=True))
            for buffer in (*self.cross.values(), *self.own.values()):
                buffer.move(to, source)
            self.source_lengths[to] = self.source_lengths[source]
        self.nodes.keep(order)
        self.count = len(order)
        self._binding = None

    def reorder(self, parents: Rows) -> None:
        """Row r continues row parents[r], one of its sentence."""
        self.nodes.follow(parents.reshape(-1, self.beam) % self.beam)

    def run(self, step: Arrays) -> Arrays:
        """One decoder step of all rows. `step` holds the graph's inputs but caches and source lengths, `[R]` or
        `[R, …]` each, and `candidates`; the answer its outputs but caches. Both are valid until the next step."""
        if self.own:
            step = step | self._next_nodes()
        step = {n: value for n, value in step.items() if n in self.inputs}
        if self._binding is None or any(self._bound[n].shape != value.shape for n, value in step.items()):
            self._bind(step)
        if self._bound["candidates"][0] != step["candidates"][0]:
            self._bind_outputs(int(step["candidates"][0]))
        for name, value in step.items():
            self._bound[name][...] = value
        self.session.run_with_iobinding(self._binding)
        return {name: self._bound[name] for name in self.outputs}

    # -- memory --------------------------------------------------------------------------------------------------

    def _next_nodes(self) -> Arrays:
        """The graph's inputs that say where each row's next node goes and what each row attends to."""
        room, places = self.nodes.room, self.nodes.place()
        if self.nodes.room != room:
            self._fit()
        if len(self._places) != self.count:
            shape = (self.count, self.beam, max(b.heads for b in self.own.values()))
            sentence, _, head = np.indices(shape)
            self._places = np.stack([sentence, head, np.zeros_like(head)], axis=-1)
        self._places[..., 2] = places[:, :, None]
        bias = np.where(self.nodes.seen, np.float32(0), np.float32(-np.inf))[:, None]
        return {"node_places": self._places, "node_bias": bias}

    def _fit(self) -> None:
        """Gives every buffer the room that is needed now."""
        for buffers, length in ((self.own, self.nodes.room), (self.cross, self.source_room)):
            for buffer in buffers.values():
                if buffer.room != (self.capacity, length):
                    buffer.resize(self.capacity, length, self.count)
                    self._binding = None

    def _bind(self, step: Arrays) -> None:
        self._bound = {n: np.array(value) for n, value in step.items()}
        self._bound["candidates"] = np.zeros(1, np.int64)
        binding = self.session.io_binding()
        for name, array in self._bound.items():
            _bind_input(binding, name, array)
        if "source_lengths" in self.inputs:
            _bind_input(binding, "source_lengths", self.source_lengths[: self.count])
        for name, buffer in (*self.cross.items(), *self.own.items()):
            _bind_input(binding, name, buffer.view[: self.count])
            if name in self.own:
                _bind_output(binding, name.replace("past_", "present_"), buffer.view[: self.count])
        self._binding = binding

    def _bind_outputs(self, candidates: int) -> None:
        sizes = {
            "R": self.count * self.beam, "B": self.count, "k": self.beam, "K": candidates, "S": self.source_room
        }  # fmt: skip
        for name, output in self.outputs.items():
            shape = [sizes.get(size, size) for size in output.shape]
            self._bound[name] = np.zeros(shape, TYPES[output.type])
            _bind_output(self._binding, name, self._bound[name])


def _bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
