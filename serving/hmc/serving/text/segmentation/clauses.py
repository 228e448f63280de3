"""Sentences that a model has no room for: where to divide them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hmc.serving.text.segmentation.lines import Span, stripped

PLACES = (
    re.compile(r"(?<=[;:–—])(?=\s)|(?=\s[–—]\s)"),
    re.compile(r"(?<=,)(?=\s)|(?<=[،、，])"),
    re.compile(r"(?=\s)"),
)
"""Where a sentence is divided: after semicolons, colons and at dashes; else after commas; else at white space."""


def clauses(text: str, fits: Callable[[str], bool]) -> Iterator[Span]:
    """Yields parts of `text`, in order and without the white space around them, each of which fits. Everything between
    them is white space. fits: tells whether a text has room; a single character always counts as one that has.

    Each part is as long as can be, but ends at a clause where one ends in its second half, else after a word where it
    can, else anywhere.
    """
    begin, length = stripped(text, 0, len(text))
    text = text[:length]
    while begin < length:
        most = _most(text, begin, fits)
        end = begin + most if begin + most == len(text) else _cut(text, begin, begin + most)
        span = stripped(text, begin, end)
        if span[0] < span[1]:
            yield span
        begin, _ = stripped(text, end, length)


def _most(text: str, begin: int, fits: Callable[[str], bool]) -> int:
    """Characters from `begin` that fit, and about the most that do."""
    low, step = 1, 64
    while fits(text[begin : begin + step]) and begin + step < len(text):
        low, step = step, 2 * step
    high = min(step, len(text) - begin)
    if fits(text[begin : begin + high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(text[begin : begin + middle]) else (low, middle)
    return low


def _cut(text: str, begin: int, end: int) -> int:
    """The best place for an end in the second half of a part that may end at `end`."""
    for pattern in PLACES:
        found = pattern.finditer(text, (begin + end) // 2 + 1, min(len(text), end + 3))
        places = [place.start() for place in found if place.start() <= end]
        if places:
            return places[-1]
    return end
