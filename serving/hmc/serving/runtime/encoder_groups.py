"""Groups sentences for calls of the encoder. The sentences of one call are padded to the longest one, and the encoder
computes padding too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
            longest, padding = lengths[index], 0
        groups[-1].append(index)
    return groups


SHORTEST = 32
"""Fewest positions of a sentence on a device, padding included; others have twice as many, four times, …"""
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
        width = SHORTEST
        while width < lengths[index]:
            width *= 2
        by_width.setdefault(min(width, room), []).append(index)
    best: list[list[DeviceGroup]] = [[]]  # of the sentences of the first widths
    widths = list(by_width)
    for last, width in enumerate(widths):
        options = []
        for first in range(last + 1):
            together = [index for each in widths[first : last + 1] for index in by_width[each]]
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
