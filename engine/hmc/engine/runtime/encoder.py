"""Calls of the encoder: which sentences share one, on a CPU and on a device, and the encoder of a level in device form.

The sentences of one call are padded to the longest one, and the encoder computes padding too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np
from onnxruntime import InferenceSession

from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.views import DeviceArray

MAX_PADDING = 16
"""Most padded positions of one call. They take about as long as one more call would: on a CPU, a call of
Transformer-base at int8 takes 0.6 ms and 45 µs for each position."""
MAX_POSITIONS = 8192
"""Most positions of one call, padding included, which bounds its memory. A single sentence may have more."""


def encoder_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Groups sentences to encode together. Groups hold indices into `lengths`, the longest sentence first.

    A sentence begins a new group if it would bring the padding of the present one above MAX_PADDING, or its positions
    above MAX_POSITIONS.
    """
    groups: list[list[int]] = []
    longest = padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += longest - lengths[index]
        if not groups or padding > MAX_PADDING or (len(groups[-1]) + 1) * longest > MAX_POSITIONS:
            groups.append([])
            longest = lengths[index]
            padding = 0
        groups[-1].append(index)
    return groups


FEWEST_POSITIONS = 32
"""Of a sentence on a device, padding included; others have twice as many, four times, …"""
CALL_POSITIONS = 4096
"""Positions whose encoding takes a device about as long as one more call. A call of Transformer-base launches some 120
kernels, which takes the host about 0.5 ms. A position needs 38 million multiplications and additions, 0.13 µs at 600
TFLOP/s, which is what a large GPU reaches in 16 bits."""
DEVICE_POSITIONS = 16384
"""Most positions of the caches that one call on a device writes, padding up to their room included, which bounds its
memory: with 8 heads of 64, keys and values in 16 bits are 34 MB a layer, and a few such arrays exist at a time."""


@dataclass(frozen=True)
class DeviceGroup:
    """Sentences of one call of the encoder on a device."""

    sentences: tuple[int, ...]
    """Indices of the sentences."""
    count: int
    """Sentences of the call, a power of two: the last one is repeated."""
    width: int
    """Positions to which all are padded."""

    @property
    def cost(self) -> int:
        """Positions that take as long as this call."""
        return self.count * self.width + CALL_POSITIONS


def device_groups(lengths: Sequence[int], room: int) -> list[DeviceGroup]:
    """Groups sentences for calls of a device's encoder, which have few different shapes. room: most positions.

    Sentences of different widths share a call unless two calls cost less. A call has at most DEVICE_POSITIONS / room
    sentences, or one.
    """
    most = most_sentences(room)
    by_width: dict[int, list[int]] = {}
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        width = FEWEST_POSITIONS
        while width < lengths[index]:
            width *= 2
        by_width.setdefault(min(width, room), []).append(index)
    best: list[list[DeviceGroup]] = [[]]  # of the sentences of the first widths
    widths = list(by_width)
    for last, width in enumerate(widths):
        options = []
        for first in range(last + 1):
            together = list(chain.from_iterable(map(by_width.__getitem__, widths[first : last + 1])))
            options.append(best[first] + _calls(together, width, most))
        best.append(min(options, key=lambda groups: sum(group.cost for group in groups)))
    return best[-1]


def most_sentences(room: int) -> int:
    """Most sentences of a call that writes caches of so many source positions: a power of two."""
    return 1 << (max(DEVICE_POSITIONS // room, 1).bit_length() - 1)


def _calls(sentences: list[int], width: int, most: int) -> list[DeviceGroup]:
    """All of these sentences at this width, in calls of at most `most` sentences."""
    parts = [tuple(sentences[first : first + most]) for first in range(0, len(sentences), most)]
    return [DeviceGroup(part, 1 << (len(part) - 1).bit_length(), width) for part in parts]


class DeviceEncoder:
    """The encoder of a level in device form: it writes the keys and values of each new sentence into the sentence's
    slot, in few calls of few different shapes."""

    def __init__(self, session: InferenceSession | None, device: Device, pad_id: int, positions: int) -> None:
        """session: None if no cross head is open, so that there is nothing to encode for. positions: of the model; the
        rooms of caches are rounded up, so they may be more."""
        self.session = session
        self.device = device
        self._pad = pad_id
        self._positions = positions
        self._binding = None if session is None else session.io_binding()
        """Of all runs, one after the other: each binds everything anew."""
        self._warm: set[tuple[int, int, int]] = set()
        """(sentences, width, room) of calls that `warm_up` has made."""

    def encode(
        self, sources: Sequence[Sequence[int]], slots: Sequence[int], caches: Mapping[str, DeviceArray], room: int
    ) -> None:
        """Encodes sentences (token ids with EOS) into their slots.

        caches: all slots of all caches. The caches named `cross_…` are written. room: their source positions.
        """
        if self.session is None:
            return
        for group in device_groups([len(source) for source in sources], room):
            chosen = [*group.sentences, *[group.sentences[-1]] * (group.count - len(group.sentences))]
            source = np.full((group.count, min(group.width, self._positions)), self._pad, np.int32)
            for row, sentence in enumerate(chosen):
                source[row, : len(sources[sentence])] = sources[sentence]
            lengths = np.array([len(sources[sentence]) for sentence in chosen], np.int32)
            self._run(source, lengths, np.array([[slots[sentence]] for sentence in chosen], np.int64), caches)

    def _run(self, source: object, lengths: object, slots: object, caches: Mapping[str, DeviceArray]) -> None:
        assert self.session is not None
        binding = self._binding
        assert binding is not None
        for name, value in (("source", source), ("source_lengths", lengths), ("slots", slots)):
            binding.bind_cpu_input(name, value)
        for name, view in caches.items():
            if name.startswith("cross_"):
                view.bind_input(binding, name)
                view.bind_output(binding, f"next_{name}")
        self.session.run_with_iobinding(binding)

    def warm_up(self, caches: Mapping[str, DeviceArray], slots: int, room: int) -> None:
        """Runs every shape of a call that `slots` slots of `room` source positions can need, unless it has before."""
        widths = [room]
        counts = [most_sentences(room)]
        while widths[-1] > FEWEST_POSITIONS:
            widths.append(max(widths[-1] // 2, FEWEST_POSITIONS))
        while counts[-1] > 1:
            counts.append(counts[-1] // 2)
        for width, calls in product(widths, counts):
            count = min(calls, slots)
            if calls < 2 * count and (calls, width, room) not in self._warm:
                self._warm.add((calls, width, room))
                self.encode([[self._pad] * min(width, self._positions)] * count, range(count), caches, room)
