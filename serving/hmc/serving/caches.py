"""Decoder caches on a CPU: one growing buffer per layer and side, written in place, never moved by beams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hmc.serving.nodes import Nodes
from hmc.serving.sessions import Arrays, Device

Rows = npt.NDArray[np.int64]
ROUND_SOURCE, ROUND_TARGET = 16, 32
TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


def round_up(value: int, step: int) -> int:
    """The least multiple of `step` that is at least `value`."""
    return -(-value // step) * step


class Buffer:
    """Memory of one layer and side, seen as `[sentences, H, length, D]` fp32. It is kept when the shape changes; what
    has never been written is 0, what is no longer used stays as it was."""

    def __init__(self, heads: int, dim: int) -> None:
        self._memory = np.zeros(0, np.float32)
        self.view: npt.NDArray[np.float32] = self._memory.reshape(0, heads, 0, dim)

    def resize(self, sentences: int, length: int, held: int) -> None:
        """Makes it `[sentences, H, length, D]`; the first `held` sentences stay as far as they fit."""
        _, heads, old, dim = self.view.shape
        size, fits = sentences * heads * length * dim, min(old, length)
        kept = self.view[:held, :, :fits].copy()
        if size > self._memory.size:
            self._memory = np.zeros(size, np.float32)
        self.view = self._memory[:size].reshape(sentences, heads, length, dim)
        self.view[:held, :, :fits] = kept

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
        heads = {n: i.shape[1] for n, i in self.inputs.items() if n.startswith(("past_", "cross_"))}
        self.own = {n: Buffer(h, head_dim) for n, h in heads.items() if n.startswith("past_")}
        self.cross = {n: Buffer(h, head_dim) for n, h in heads.items() if n.startswith("cross_")}
        self.nodes, self.source_room = Nodes(beam, ROUND_TARGET), ROUND_SOURCE
        self.source_lengths = np.zeros(0, np.int32)
        self._places = np.zeros((0, beam, 0, 3), np.int64)
        self._binding: Any = None
        self._bound: Arrays = {}

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32]) -> None:
        """Appends sentences with their cross keys and values `[B, H_l, S, D]`."""
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
            self.cross[name].view[start : start + new, :, : value.shape[2]] = value
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
            shape = (self.count, self.beam, max(b.view.shape[1] for b in self.own.values()))
            sentence, _, head = np.indices(shape)
            self._places = np.stack([sentence, head, np.zeros_like(head)], axis=-1)
        self._places[..., 2] = places[:, :, None]
        bias = np.where(self.nodes.seen, np.float32(0), np.float32(-np.inf))[:, None]
        return {"node_places": self._places, "node_bias": bias}

    def _fit(self) -> None:
        """Gives every buffer the room that is needed now."""
        for buffers, length in ((self.own, self.nodes.room), (self.cross, self.source_room)):
            for buffer in buffers.values():
                if buffer.view.shape[::2] != (self.capacity, length):
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
