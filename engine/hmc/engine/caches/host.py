"""Decoder caches in the memory of a CPU: one buffer per layer and side, which the graph reads and writes in place.

Where a processor computes a lone row differently, `LoneRowCaches` hold it twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hmc.artifact.rounding import round_up
from hmc.engine.arrays import DTYPES, Arrays, Ints
from hmc.engine.caches.interface import Caches
from hmc.engine.caches.positions import Positions
from hmc.engine.caches.shortlists import Shortlists
from hmc.engine.runtime.encoder import encoder_groups
from hmc.engine.runtime.sessions import LevelSessions

ROUND_SOURCE = 8
"""Source capacities are multiples of this, so that buffers seldom change."""
ROUND_TARGET = 32
"""Target positions of a sentence at first."""
COPIES = 2
"""Rows that the graph sees of a lone row."""


class HostCaches(Caches):
    """Sentence i is entry i of every buffer; unused entries follow. `past_…` and `present_…` are the same memory."""

    first_capacity: ClassVar[int] = 0
    """Sentences for which there is room at first."""

    def __init__(self, sessions: LevelSessions, decoder: Any, rows: int, positions: Positions) -> None:
        """decoder: an ONNX Runtime session. rows: of each sentence."""
        self.sessions = sessions
        self.session = decoder
        self.rows = rows
        self.positions = positions
        self.count = 0
        self.capacity = self.first_capacity
        self.inputs = {i.name: i for i in decoder.get_inputs()}
        outputs = {o.name: o for o in decoder.get_outputs()}
        self.present = {name for name in outputs if name.startswith("present_")}
        self.outputs = {name: o for name, o in outputs.items() if name not in self.present}
        self.self_attention, self.cross_attention = (
            {n: HostBuffer(i, axis) for n, i in self.inputs.items() if n.startswith(side)}
            for side, axis in (("past_", positions.axis), ("cross_", "S"))
        )
        self.source_capacity = ROUND_SOURCE
        self.source_lengths = np.zeros(self.capacity, np.int32)
        self.shortlists = Shortlists.for_level(sessions, rows)
        self._binding: Any = None
        self._bound: Arrays = {}
        self._outputs: Arrays = {}
        self._candidates = 0

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """Sentences of about the same length together, because the encoder pads them to the longest."""
        return encoder_groups(lengths)

    def add(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]],
        limits: Sequence[int] = (),  # noqa: ARG002 - buffers grow when they have to
    ) -> None:
        cross, lengths = self.sessions.encode(sources)
        new = len(lengths)
        start = self.count
        longest = round_up(int(lengths.max()), ROUND_SOURCE)
        if not start:  # a capacity that only earlier sentences needed would slow every step down
            self.positions.reset()
            self.source_capacity = longest
        self.source_capacity = max(self.source_capacity, longest)
        if start + new > self.capacity:
            self.capacity = max(start + new, 2 * self.capacity)
            self.source_lengths = np.concatenate([self.source_lengths[:start], np.zeros(self.capacity, np.int32)])
            self._binding = None
        self.positions.add(new)
        self._fit()
        for name, buffer in self.cross_attention.items():
            buffer.write(start, cross[name])
        if self.shortlists:
            self.shortlists.add(sources, prefixes)
            self._binding = None
        self.source_lengths[start : start + new] = lengths
        self.count += new

    def keep(self, order: Sequence[int]) -> None:
        """See `Caches`. Only sentences whose index changes are copied."""
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        if moved:
            to, source = (np.array(side, np.int64) for side in zip(*moved, strict=True))
            for buffer in (*self.cross_attention.values(), *self.self_attention.values()):
                buffer.move(to, source)
            self.source_lengths[to] = self.source_lengths[source]
        self.positions.keep(order)
        if self.shortlists:
            self.shortlists.keep(order)
            self._binding = None
        self.count = len(order)

    def clean(self, sentences: Sequence[int]) -> None:
        for buffer in (*self.cross_attention.values(), *self.self_attention.values()):
            buffer.view[np.asarray(sentences, np.int64)] = 0

    def reorder(self, parents: Ints) -> None:
        self.positions.reorder(parents)

    def run(self, step: Arrays) -> Arrays:
        """See `Caches`.

        The graph's work has emptied the processor's caches since the last step, so every operation here is slow.
        """
        candidates = int(step.pop("candidates")[0])
        if self.shortlists:
            candidates = min(candidates, self.shortlists.width)
            self.shortlists.translate(step)
        if self.self_attention:
            capacity = self.positions.capacity
            step |= self.positions.next_inputs(step)
            if self.positions.capacity != capacity:
                self._fit()
        bound = self._bound
        if self._binding is None or any(n in bound and bound[n].shape != v.shape for n, v in step.items()):
            self._bind(step)
            bound = self._bound
        if self._candidates != candidates:
            self._bind_outputs(candidates)
        for name, value in step.items():
            if name in bound:
                bound[name][...] = value
        return self._run()

    @property
    def steps_ahead(self) -> int:
        return self.positions.steps_ahead

    def run_next(self, tokens: Ints) -> Arrays:
        bound = self._bound
        bound["tokens"][...] = tokens
        bound["lengths"] += 1
        if self.self_attention:
            self.positions.advance(bound)
        return self._run()

    def _run(self) -> Arrays:
        self.session.run_with_iobinding(self._binding)
        return self._outputs

    # -- memory --------------------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Gives every buffer the capacity that is needed now."""
        for buffers, length in (
            (self.self_attention, self.positions.capacity),
            (self.cross_attention, self.source_capacity),
        ):
            for buffer in buffers.values():
                if buffer.capacity != (self.capacity, length):
                    buffer.resize(self.capacity, length, self.count)
                    self._binding = None

    def _bind(self, step: Arrays) -> None:
        """Binds all inputs, in the shapes of this step, and the caches as they are now."""
        step = {"wanted": np.zeros(self.count * self.rows, np.int64)} | step
        self._bound = {n: np.array(value) for n, value in step.items() if n in self.inputs}
        self._bound["candidates"] = np.zeros(1, np.int64)
        self._candidates = 0
        binding = self.session.io_binding()
        for name, array in self._bound.items():
            bind_input(binding, name, array)
        if "source_lengths" in self.inputs:
            bind_input(binding, "source_lengths", self.source_lengths[: self.count])
        for name, array in (self.shortlists.inputs if self.shortlists else {}).items():
            bind_input(binding, name, array)
        for name, buffer in (*self.cross_attention.items(), *self.self_attention.items()):
            bind_input(binding, name, buffer.view[: self.count])
            if (present := f"present_{name.removeprefix('past_')}") in self.present:
                bind_output(binding, present, buffer.view[: self.count])
        self._binding = binding

    def _bind_outputs(self, candidates: int) -> None:
        """Binds all outputs but the caches, for this number of candidates per row."""
        self._bound["candidates"][0] = self._candidates = candidates
        sizes = {
            "R": self.count * self.rows, "B": self.count, "k": self.rows, "K": candidates, "S": self.source_capacity
        }  # fmt: skip
        self._outputs = {
            name: np.zeros([sizes.get(size, size) for size in output.shape], DTYPES[output.type])
            for name, output in self.outputs.items()
        }
        for name, array in self._outputs.items():
            bind_output(self._binding, name, array)


class LoneRowCaches(HostCaches):
    """Host caches for one row a sentence. They hold a lone sentence twice; the copy's output is dropped.

    ONNX Runtime's matrix products may use another kernel for one row, which sums in another order. With 4-bit weights
    on processors without AVX-512 the last bits of a lone row's results differed, and one translation in a hundred
    changed.
    """

    first_capacity = COPIES
    _copied = False
    """Whether the only sentence is there twice."""

    def add(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]], limits: Sequence[int] = ()
    ) -> None:
        if self._copied:
            super().keep([0])
        super().add(sources, prefixes, limits)
        self._duplicate()

    def keep(self, order: Sequence[int]) -> None:
        super().keep(order)
        self._duplicate()

    def _duplicate(self) -> None:
        self._copied = self.count == 1
        if self._copied:
            super().keep([0] * COPIES)

    def clean(self, sentences: Sequence[int]) -> None:
        super().clean(range(self.count) if self._copied else sentences)

    def run(self, step: Arrays) -> Arrays:
        if self._copied:
            copied = {name: value.repeat(COPIES, axis=0) for name, value in step.items() if name != "candidates"}
            step = step | copied
        return self._without_copy(super().run(step))

    def run_next(self, tokens: Ints) -> Arrays:
        """See `Caches`. The copy continues with the same token."""
        return self._without_copy(super().run_next(tokens))

    def _without_copy(self, outputs: Arrays) -> Arrays:
        return {name: value[:1] for name, value in outputs.items()} if self._copied else outputs


class HostBuffer:
    """One cache: the keys or the values of one layer. The first axis counts sentences, one other axis grows.

    New memory is 0. A smaller shape frees no memory, and dropped sentences are not overwritten. Behind the written
    part, everything up to the capacity is set to 0, because masks do not hide NaN of an earlier sentence.
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
        part[0] = slice(start, start + len(values))
        part[self._axis] = slice(length)
        self.view[tuple(part)] = values
        part[self._axis] = slice(length, None)
        self.view[tuple(part)] = 0

    def resize(self, sentences: int, length: int, used: int) -> None:
        """Sets the capacity. The first `used` sentences stay, cut to `length`."""
        kept = np.take(self.view[:used], range(min(self.capacity[1], length)), self._axis) if used else None
        shape = list(self.view.shape)
        shape[0] = sentences
        shape[self._axis] = length
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
