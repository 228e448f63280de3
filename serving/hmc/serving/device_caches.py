"""Decoder caches that stay on a device (CUDA). A sentence keeps one slot, its place in every buffer, from its first
step to its last, so nothing moves there: the encoder writes into slots, steps write in place, and only what a step
needs and gives crosses over. A step runs all slots up to a power of two, the free ones too, since a device computes a
few more rows in the same time, and a new shape costs it more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar

import numpy as np

from hmc.artifact.bundle import Variant
from hmc.artifact.errors import InvalidArtifactError
from hmc.serving.buffers import TYPES, Rows, round_up
from hmc.serving.device_memory import DeviceArray, DeviceBuffer
from hmc.serving.sessions import Arrays, LevelSessions

ROUND_SOURCE, FIRST_ROOM = 16, 64
"""Source positions come in multiples of this; target places, at first."""
ON_HOST = ("candidates", "total_length")
"""Inputs that operators read on the host."""


class DeviceCaches(ABC):
    """Sentences 0 … N-1 with k rows each, as `HostCaches` has them; sentence i is in slot `slots[i]`."""

    axis: ClassVar[str]
    """Of the self-attention buffers, the one that grows."""

    def __init__(self, sessions: LevelSessions, variant: Variant | None, beam: int) -> None:
        """Raises InvalidArtifactError for a decoder of an earlier version, which gathers caches."""
        self.sessions, self.session, self.beam = sessions, sessions.decoder(variant), beam
        self.device = sessions.device
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        if "parents" in self.inputs:
            raise InvalidArtifactError(
                f"level {sessions.level.name}", ["its decoder for CUDA is one of an earlier version"],
                "Compile the bundle again with `hmc compile`.",
            )  # fmt: skip
        outputs = {o.name: o for o in self.session.get_outputs()}
        self.outputs = {name: o for name, o in outputs.items() if not name.startswith("present_")}
        self.own, self.cross = (
            {n: DeviceBuffer(i, axis, self.device) for n, i in self.inputs.items() if n.startswith(side)}
            for side, axis in (("past_", self.axis), ("cross_", "S"))
        )
        self.slots: Rows = np.zeros(0, np.int64)
        self.size = 0
        """Slots that a step runs."""
        self.source_room = ROUND_SOURCE
        self.source_lengths = np.ones(0, np.int32)
        self._binding: Any = None
        self._bound: dict[str, DeviceArray] = {}
        self._on_host: Arrays = {}
        self._results: dict[str, DeviceArray] = {}
        self._empty_own()

    def add(self, sources: Sequence[Sequence[int]]) -> None:
        """Encodes sentences (ids with EOS) into free slots."""
        lengths = np.array([len(s) for s in sources], np.int32)
        room = round_up(int(lengths.max()), ROUND_SOURCE)
        if not len(self.slots):  # room for long sentences that are gone would only slow the next ones down
            self._empty_own()
            self.source_room = room
            self.source_lengths[:] = 1
        self.source_room = max(self.source_room, room)
        taken = self._free_slots(len(sources))
        self._fit(max(taken) + 1)
        for first, last in _runs(taken):
            self._encode(sources[first:last], taken[first])
        self.source_lengths[taken] = lengths
        self.slots = np.concatenate([self.slots, np.array(taken, np.int64)])
        self._add_own(len(sources))
        self._place()

    def keep(self, order: Sequence[int]) -> None:
        """Sentence i becomes what sentence order[i] was; the slots of the rest are free."""
        self.slots = self.slots[np.asarray(order, np.int64)]
        self._keep_own(order)
        self._place()

    @abstractmethod
    def reorder(self, parents: Rows) -> None:
        """Row r continues row parents[r], one of its sentence."""

    def run(self, step: Arrays) -> Arrays:
        """One decoder step of all rows; see `HostCaches.run`."""
        unread = set() if "wanted" in step else {"wanted_scores"}
        step = {"wanted": np.zeros(len(self.slots) * self.beam, np.int64), **step}
        here = {"candidates": step.pop("candidates")}
        there = {name: value[self._row_in] for name, value in step.items() if name in self.inputs}
        if "source_lengths" in self.inputs:
            there["source_lengths"] = self.source_lengths[: self.size]
        for name, value in (self._next_own(step) if self.own else {}).items():
            (here if name in ON_HOST else there)[name] = value
        if self._binding is None or any(self._bound[n].value.shape() != list(v.shape) for n, v in there.items()):
            self._bind(there)
        for name, value in there.items():
            self._bound[name].write(value)
        self._bind_host(here)
        self.session.run_with_iobinding(self._binding)
        return {
            name: array.read()[self.slots if self.outputs[name].shape[0] == "B" else self._row_out]
            for name, array in self._results.items()
            if name not in unread
        }

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
        """See `keep`."""

    @abstractmethod
    def _next_own(self, step: Arrays) -> Arrays:
        """The graph's inputs that say where the next keys and values of each slot's rows go."""

    # -- slots and memory ------------------------------------------------------------------------------------------

    def _free_slots(self, wanted: int) -> list[int]:
        """The first free ones, ascending."""
        used = set(self.slots.tolist())
        free = (slot for slot in count() if slot not in used)
        return [next(free) for _ in range(wanted)]

    def _place(self) -> None:
        """Which rows a step runs, and which row of the batch each is: rows of free slots repeat the first."""
        if not len(self.slots):
            return
        self.size = 1 << int(self.slots.max()).bit_length()
        at = np.arange(self.beam)
        self._row_out: Rows = (self.slots[:, None] * self.beam + at).reshape(-1)
        sentence = np.zeros(self.size, np.int64)
        sentence[self.slots] = np.arange(len(self.slots))
        self._row_in: Rows = (sentence[:, None] * self.beam + at).reshape(-1)

    def _fit(self, slots: int) -> None:
        """Gives every buffer the room that is needed now."""
        wanted = max(1 << (slots - 1).bit_length(), len(self.source_lengths))
        grown = wanted - len(self.source_lengths)
        self.source_lengths = np.concatenate([self.source_lengths, np.ones(grown, np.int32)])
        for buffers, length in ((self.own, self._own_room), (self.cross, self.source_room)):
            for buffer in buffers.values():
                if buffer.resize(wanted, length, keep=bool(len(self.slots))):
                    self._binding = None

    def _encode(self, sources: Sequence[Sequence[int]], first: int) -> None:
        """Into the slots from `first` on."""

        def into(binding: Any) -> None:
            for name, buffer in self.cross.items():
                buffer.bind_output(binding, name, len(sources), first)

        if self.cross:
            self.sessions.encode_into(sources, self.source_room, into)

    def _bind(self, step: Arrays) -> None:
        """Memory for a step of these shapes, and the caches as they are now."""
        self._binding = self.session.io_binding()
        self._bound = {n: DeviceArray(v.shape, v.dtype, self.device) for n, v in step.items()}
        for name, array in self._bound.items():
            self._binding.bind_ortvalue_input(name, array.value)
        for name, buffer in (*self.cross.items(), *self.own.items()):
            buffer.bind_input(self._binding, name, self.size)
        for name, buffer in self.own.items():
            buffer.bind_output(self._binding, name.replace("past_", "present_"), self.size)
        self._on_host, self._results = {}, {}

    def _bind_host(self, here: Arrays) -> None:
        """Inputs on the host, and outputs of the size that they tell."""
        if all(np.array_equal(self._on_host.get(name, ()), value) for name, value in here.items()):
            return
        self._on_host = {name: value.copy() for name, value in here.items()}
        for name, value in self._on_host.items():
            self._binding.bind_cpu_input(name, value)
        sizes = {
            "R": self.size * self.beam, "B": self.size, "k": self.beam, "S": self.source_room,
            "K": int(here["candidates"][0]),
        }  # fmt: skip
        for name, output in self.outputs.items():
            shape = tuple(sizes.get(size, size) for size in output.shape)
            self._results[name] = DeviceArray(shape, TYPES[output.type], self.device)
            self._binding.bind_ortvalue_output(name, self._results[name].value)


def _runs(slots: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbouring slots as ranges of positions: [3, 4, 7] → [(0, 2), (2, 3)]."""
    breaks = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1]
    return list(zip([0, *breaks], [*breaks, len(slots)], strict=True))
