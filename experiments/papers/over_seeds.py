"""Differences between trainings, judged by the noise between seeds: Welch's t interval. The variance of a side that was
trained once is taken to be that of the other.

A difference between the outputs of two checkpoints has tests of its own (`hmc.artifact.significance`), which say
nothing of other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from hmc.benchmark.measure.validity import student


@dataclass(frozen=True)
class Difference:
    """Mean of some trainings minus that of others, with a 95 % interval; infinite where no side has two seeds."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2, sign: str = "+") -> str:
        """`-0.42 (-0.71 to -0.13)`; without an interval, the value alone."""
        value, low, high = (f"{number:{sign}.{digits}f}" for number in (self.value, self.low, self.high))
        return f"{value} (no interval: one seed each)" if math.isinf(self.high) else f"{value} ({low} to {high})"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Mean of `ours` minus mean of `theirs`, one value for each seed."""
    value, several = fmean(ours) - fmean(theirs), [side for side in (ours, theirs) if len(side) > 1]
    errors = [variance(side) / len(side) for side in several]
    if not several:
        return Difference(value, -math.inf, math.inf)
    if len(several) == 1:
        [side] = several
        error, freedom = variance(side) * (1 / len(ours) + 1 / len(theirs)), len(side) - 1.0
    else:  # Welch 1947
        error = sum(errors)
        parts = sum(part**2 / (len(side) - 1) for part, side in zip(errors, several, strict=True))
        freedom = error**2 / parts if parts else 1.0
    reach = student(freedom) * math.sqrt(error)
    return Difference(value, value - reach, value + reach)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Geometric mean of `ours` over that of `theirs`, all positive, with its interval."""
    found = difference([math.log(x) for x in ours], [math.log(x) for x in theirs])
    return Difference(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def mean(values: Sequence[float]) -> Difference:
    """Mean over seeds with its interval."""
    if len(values) < 2:
        return Difference(values[0], -math.inf, math.inf)
    centre = fmean(values)
    reach = student(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return Difference(centre, centre - reach, centre + reach)
