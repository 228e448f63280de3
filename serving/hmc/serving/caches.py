"""Decoder caches on a CPU: one growing buffer per layer and side, written in place, never moved by beams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from hmc.serving.buffers import TYPES, Buffer, Rows, bind_input, bind_output, round_up
from hmc.serving.sessions import Arrays
from hmc.serving.shortlists import Shortlists

ROUND_SOURCE, ROUND_TARGET = 8, 32


class HostCaches(ABC):
    """Sentences 0 … N-1 with k rows each, as a prefix of every buffer. Past and present are the same memory.

    Cross buffers hold a sentence's source positions; what those of self-attention hold, subclasses say.
    """

    axis: ClassVar[str]
    """Of the self-attention buffers, the one that grows."""

    def __init__(self, session: Any, beam: int, shortlists: Shortlists | None = None) -> None:
        """shortlists: empty, of a decoder that has them."""
        self.session, self.beam, self.count, self.capacity = session, beam, 0, 0
        self.inputs = {i.name: i for i in session.get_inputs()}
        outputs = {o.name: o for o in session.get_outputs()}
        self.present = {name for name in outputs if name.startswith("present_")}
        self.outputs = {name: o for name, o in outputs.items() if name not in self.present}
        self.own, self.cross = (
            {n: Buffer(i, axis) for n, i in self.inputs.items() if n.startswith(side)}
            for side, axis in (("past_", self.axis), ("cross_", "S"))
        )
        self.source_room = ROUND_SOURCE
        self.source_lengths = np.zeros(0, np.int32)
        self.shortlists = shortlists
        self._binding: Any = None
        self._bound: Arrays = {}
        self._candidates = 0
        self._empty_own()

    def add(self, cross: Arrays, lengths: npt.NDArray[np.int32], lists: Sequence[Rows] = ()) -> None:
        """Appends sentences with their cross keys and values, as the encoder gives them, and their shortlists."""
        new, start = len(lengths), self.count
        longest = round_up(int(lengths.max()), ROUND_SOURCE)
        if not start:  # room for long sentences that are gone would only slow the next ones down
            self._empty_own()
            self.source_room = longest
        self.source_room = max(self.source_room, longest)
        if start + new > self.capacity:
            self.capacity = max(start + new, 2 * self.capacity)
            self.source_lengths = np.concatenate([self.source_lengths[:start], np.zeros(self.capacity, np.int32)])
            self._binding = None
        self._add_own(new)
        self._fit()
        for name, buffer in self.cross.items():
            buffer.write(start, cross[name])
        if self.shortlists:
            self.shortlists.add(lists)
            self._binding = None
        self.source_lengths[start : start + new] = lengths
        self.count += new

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the rest is dropped."""
        moved = [(new, old) for new, old in enumerate(order) if new != old]
        if moved:
            to, source = (np.array(side, np.int64) for side in zip(*moved, strict=True))
            for buffer in (*self.cross.values(), *self.own.values()):
                buffer.move(to, source)
            self.source_lengths[to] = self.source_lengths[source]
        self._keep_own(order)
        if self.shortlists:
            self.shortlists.keep(order)
            self._binding = None
        self.count = len(order)

    @abstractmethod
    def reorder(self, parents: Rows) -> None:
        """Row r continues row parents[r], one of its sentence."""

    def run(self, step: Arrays) -> Arrays:
        """One decoder step of all rows. `step` holds the graph's inputs but caches and source lengths, `[R]` or
        `[R, …]` each; `wanted` may be left out when nobody reads `wanted_scores`. The answer holds its outputs but
        caches. Both are valid until the next step.

        What this needs has left the processor's caches since the last step: every operation here is a slow one.
        """
        candidates = int(step.pop("candidates")[0])
        if self.shortlists:
            candidates = min(candidates, self.shortlists.width)
            self.shortlists.translate(step)
        if self.own:
            step |= self._next_own(step)
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

    def _run(self) -> Arrays:
        """With what is bound."""
        self.session.run_with_iobinding(self._binding)
        return {name: self._bound[name] for name in self.outputs}

    # -- self-attention --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _own_room(self) -> int:
        """Length of the axis that grows."""

    @abstractmethod
    def _empty_own(self) -> None:
        """Forgets all sentences, and the room that they needed."""

    @abstractmethod
    def _add_own(self, sentences: int) -> None:
        """Appends sentences that have written nothing yet."""

    @abstractmethod
    def _keep_own(self, order: Sequence[int]) -> None:
        """See `keep`; buffers are moved already."""

    @abstractmethod
    def _next_own(self, step: Arrays) -> Arrays:
        """The graph's inputs that say where each row's next keys and values go."""

    # -- memory --------------------------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Gives every buffer the room that is needed now."""
        for buffers, length in ((self.own, self._own_room), (self.cross, self.source_room)):
            for buffer in buffers.values():
                if buffer.room != (self.capacity, length):
                    buffer.resize(self.capacity, length, self.count)
                    self._binding = None

    def _bind(self, step: Arrays) -> None:
        step = {"wanted": np.zeros(self.count * self.beam, np.int64)} | step
        self._bound = {n: np.array(value) for n, value in step.items() if n in self.inputs}
        self._bound["candidates"], self._candidates = np.zeros(1, np.int64), 0
        binding = self.session.io_binding()
        for name, array in self._bound.items():
            bind_input(binding, name, array)
        if "source_lengths" in self.inputs:
            bind_input(binding, "source_lengths", self.source_lengths[: self.count])
        for name, array in (self.shortlists.inputs if self.shortlists else {}).items():
            bind_input(binding, name, array)
        for name, buffer in (*self.cross.items(), *self.own.items()):
            bind_input(binding, name, buffer.view[: self.count])
            if (present := f"present_{name.removeprefix('past_')}") in self.present:
                bind_output(binding, present, buffer.view[: self.count])
        self._binding = binding

    def _bind_outputs(self, candidates: int) -> None:
        self._bound["candidates"][0] = self._candidates = candidates
        sizes = {
            "R": self.count * self.beam, "B": self.count, "k": self.beam, "K": candidates, "S": self.source_room
        }  # fmt: skip
        for name, output in self.outputs.items():
            shape = [sizes.get(size, size) for size in output.shape]
            self._bound[name] = np.zeros(shape, TYPES[output.type])
            bind_output(self._binding, name, self._bound[name])
