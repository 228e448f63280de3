"""Which sentences a call of the encoder takes: those of one call are padded to the longest, and padding is work."""

from __future__ import annotations

from collections.abc import Sequence

A_CALL = 16
"""Positions that cost as much as a call of the encoder does by itself (measured on a CPU: 0.6 ms of Transformer-base at
int8, whose positions take 45 µs)."""
MOST = 8192
"""Positions of one call, which are what it needs memory for; a sentence may have more."""


def alike(lengths: Sequence[int]) -> list[list[int]]:
    """Groups of sentences to encode together, by their indices, the longest first: a sentence that would bring the
    padding of its group above A_CALL positions, or the group above MOST, begins the next one."""
    groups: list[list[int]] = []
    longest = padding = 0
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padding += longest - lengths[index]
        if not groups or padding > A_CALL or (len(groups[-1]) + 1) * longest > MOST:
            groups.append([])
            longest, padding = lengths[index], 0
        groups[-1].append(index)
    return groups
