"""How many texts a caller may send in a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

CHARACTERS_PER_UNIT = 1000
"""A text counts once for every so many characters that it has begun, so that a long text is not as cheap as a word."""


def units(lengths: list[int]) -> int:
    """What texts of these lengths (characters) count for together. An empty text counts once, too."""
    return sum(max(1, math.ceil(length / CHARACTERS_PER_UNIT)) for length in lengths)


class Filling(NamedTuple):
    """What is left of an allowance at some time."""

    level: float
    at: float
    """Seconds, by the allowance's clock."""


class Allowance:
    """Fills up by `per_second` texts a second, up to `burst` texts. Lives on one event loop.

    A call of more texts than `burst` is let through when the allowance is full, and leaves a debt that later calls wait
    for. So every call can pass at some time, and the rate holds over time.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_second, self.burst = per_second, burst
        self._clock = clock
        self._filling = Filling(float(burst), clock())

    def take(self, amount: int, *, only_look: bool = False) -> float:
        """Takes `amount` and returns 0, or takes nothing and returns the seconds until it can be taken. With
        `only_look` it takes nothing in either case."""
        now, (level, at) = self._clock(), self._filling
        level = min(self.burst, level + (now - at) * self.per_second)
        missing = min(amount, self.burst) - level
        enough = missing <= 1e-9  # rounding of the level must not cost a wait
        self._filling = Filling(level - amount if enough and not only_look else level, now)
        return 0.0 if enough else missing / self.per_second
