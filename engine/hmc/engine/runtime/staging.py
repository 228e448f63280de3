"""Sentences that are encoded before they have a slot, because a call of the encoder takes a device about as long for
64 sentences as for a few.

Slots become free a few at a time. When a sentence that begins has to be encoded, those that will begin after it are
encoded with it, into memory of their own. As soon as one of them has a slot, its keys and values are copied there, on
the device: one strided copy where all layers have as many heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from hmc.artifact.rounding import round_up
from hmc.engine.runtime.encoder import CALL_POSITIONS, DeviceEncoder
from hmc.engine.runtime.memory import cuda_calls
from hmc.engine.runtime.memory.account import LevelMemory
from hmc.engine.runtime.memory.blocks import ALIGNMENT, DeviceBlock
from hmc.engine.runtime.memory.views import DeviceArray, copy_lines, item_bytes

Key = Future[Any]
"""The future of a sentence, by which it is known. A cancelled one does not begin any more."""
Upcoming = Callable[[], Iterable[tuple[Key, Sequence[int]]]]
"""Returns sentences that wait and will probably begin next, in their order: their keys and token ids with EOS."""
Shape = tuple[str, tuple[str | int, ...]]
"""Element type, as ONNX Runtime names it, and axes as the graph names them, such as `[B, 8, S, 64]`."""
POSITIONS = CALL_POSITIONS
"""Source positions for which there is memory: what is encoded ahead lengthens a call by one more call at most."""


@dataclass(frozen=True)
class NewSentence:
    """A sentence that gets a slot."""

    slot: int
    source: Sequence[int]
    """Token ids, EOS last."""
    key: Key | None = None
    """None: it was not among `Upcoming`."""


@dataclass(frozen=True)
class CopyRun:
    """Arrays of a sentence that one strided copy moves. Addresses are of place 0 and slot 0."""

    source: int
    target: int
    steps: tuple[int, int]
    """Bytes from one place to the next, and from one slot to the next."""
    pitches: tuple[int, int]
    """Bytes from one line to the next, in target and source."""
    lines: int
    length: int
    """Bytes of a line."""


class Staging:
    """The sentences of one mode that are encoded ahead, each in a place of its own, and the way into slots."""

    def __init__(self, caches: Mapping[str, Shape], encoder: DeviceEncoder, memory: LevelMemory) -> None:
        """caches: of the mode; those named `cross_…` count. Raises FailedPreconditionError if the device has too little
        memory."""
        self._shapes = {name: shape for name, shape in caches.items() if name.startswith("cross_")}
        self._encoder = encoder
        self._device = memory.device
        size = sum(_one_position(shape) * POSITIONS + ALIGNMENT for shape in self._shapes.values())
        self._block = DeviceBlock(memory, size, "sentences encoded ahead") if self._shapes else None
        self._room = 0
        """Source positions of the sentences that are staged."""
        self._places: dict[Key, int] = {}
        """Sentence → its place, of those that are staged."""
        self._unclean = False
        """Whether what earlier sentences left in the places may be NaN."""

    def capacity(self, room: int) -> int:
        """Sentences of so many source positions for which there are places."""
        return POSITIONS // room if self._shapes else 0

    def fill(
        self, new: Sequence[NewSentence], caches: Mapping[str, DeviceArray], room: int, upcoming: Upcoming = tuple
    ) -> None:
        """Writes the keys and values of sentences into their slots: copies the staged sentences, and encodes the
        others. Where that takes a call and no sentence is staged any more, some of `upcoming` are encoded with them.

        caches: all slots of all caches. room: their source positions. No step that uses these slots may still run.
        """
        staged = []
        others = []
        for sentence in new:
            place = None if sentence.key is None else self._places.pop(sentence.key, None)
            if place is None:
                others.append(sentence)
            else:
                staged.append((place, sentence.slot))
        self._copy(staged, caches)
        if not others:
            return
        following = self._following(len(others), room, upcoming)
        if following:
            self._room = room
            self._wipe()
            sources = [*(sentence.source for sentence in others), *(source for _, source in following)]
            self._encoder.encode(sources, range(len(sources)), self._views(room), room)
            self._places = {key: len(others) + n for n, (key, _) in enumerate(following)}
            self._copy([(place, sentence.slot) for place, sentence in enumerate(others)], caches)
        else:
            self._encoder.encode(
                [sentence.source for sentence in others], [sentence.slot for sentence in others], caches, room
            )

    def clean(self) -> None:
        """Has the places set to 0 before sentences are staged again. A failed sentence may have left NaN there, and the
        next sentence may be shorter. Those that are staged now stay."""
        self._unclean = True

    def _wipe(self) -> None:
        """No sentence may be staged, but for cancelled ones, which nobody has seen fail."""
        if self._block is not None and (self._unclean or self._places):
            self._block.write(np.zeros(self._block.size, np.uint8))
            self._unclean = False

    def warm_up(self, room: int) -> None:
        """Runs the encoder on every shape that sentences of so many positions can need here."""
        if count := self.capacity(room):
            self._encoder.warm_up(self._views(room), count, room)

    def close(self) -> None:
        """Gives the memory back. Nothing may be called afterwards."""
        self._places.clear()
        self._block = None

    def _following(self, begun: int, room: int, upcoming: Upcoming) -> list[tuple[Key, Sequence[int]]]:
        """Sentences to encode together with so many that begin now."""
        places = self.capacity(room) - begun
        if places < 1 or any(not key.cancelled() for key in self._places):
            return []
        return [(key, source) for key, source in upcoming() if len(source) <= room][:places]

    def _views(self, room: int) -> dict[str, DeviceArray]:
        """All places of all caches, for sentences of so many source positions."""
        assert self._block is not None
        views = {}
        at = self._block.address
        sizes = {"S": room, "B": self.capacity(room)}
        for name, (kind, axes) in self._shapes.items():
            dims = tuple(axis if isinstance(axis, int) else sizes[axis] for axis in axes)
            views[name] = DeviceArray(self._device, kind, dims, at)
            at += round_up(views[name].bytes, ALIGNMENT)
        return views

    def _copy(self, moves: Sequence[tuple[int, int]], caches: Mapping[str, DeviceArray]) -> None:
        """Copies sentences; moves: (place, slot) of each."""
        if not moves:
            return
        runs = copy_runs(self._views(self._room), caches)
        for place, slot in moves:
            for run in runs:
                source = run.source + place * run.steps[0]
                target = run.target + slot * run.steps[1]
                copy_lines(self._device, target, source, run.pitches, run.lines, run.length)
        if self._device.kind != "cpu":  # steps run on another stream
            cuda_calls.wait(self._device.index)


def copy_runs(staged: Mapping[str, DeviceArray], caches: Mapping[str, DeviceArray]) -> list[CopyRun]:
    """The copies that move a sentence from its place into its slot. Caches of equal size that lie equally far apart
    share one copy. If places and slots have different rooms, each cache takes one of its own, a line for each head."""
    runs: list[CopyRun] = []
    for name, view in staged.items():
        into = caches[name]
        steps = view.bytes // view.shape[0], into.bytes // into.shape[0]
        if view.shape[1:] != into.shape[1:]:
            open_heads = view.shape[1]
            line_from = steps[0] // open_heads
            line_to = steps[1] // open_heads
            pitches = (line_to, line_from)
            length = min(line_from, line_to)
            runs.append(CopyRun(view.address, into.address, steps, pitches, open_heads, length))
            continue
        if runs and (longer := _extended(runs[-1], view.address, into.address, steps)):
            runs[-1] = longer
        else:
            runs.append(CopyRun(view.address, into.address, steps, steps, 1, steps[0]))
    return runs


def _extended(run: CopyRun, source: int, target: int, steps: tuple[int, int]) -> CopyRun | None:
    """The run with one more array, if that lies where its next line would."""
    last = run.lines - 1
    pitches = target - run.target - last * run.pitches[0], source - run.source - last * run.pitches[1]
    if run.steps != steps or min(pitches) < run.length or (run.lines > 1 and pitches != run.pitches):
        return None
    return CopyRun(run.source, run.target, steps, pitches, run.lines + 1, run.length)


def _one_position(shape: Shape) -> int:
    """Bytes of one source position."""
    kind, axes = shape
    return math.prod(axis for axis in axes if isinstance(axis, int)) * item_bytes(kind)
