"""What a set of measured times allows to say: which percentiles, how sure, and whether the machine was steady.

Times come in rounds, `[R, N]`: every round measures the same N requests. Rounds are what varies from one run to the
next, so intervals are computed over rounds, and never over requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MISSED = 0.0013
"""A percentile is reported only if the probability that no measured request was slower is at most this."""
DRIFT = 0.05
SPREAD = 0.20
"""Beyond these a measurement is called unsteady: see `Steadiness`."""
OUTLYING = 2.0
"""A time is an outlier if it is more than this many times the median of the same request over the rounds."""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The quantiles of `student` for 1, 2, … degrees of freedom."""
FEWEST_ROUNDS = 3
"""With fewer rounds there are no intervals, and neither steadiness nor outliers are checked."""

Rounds = Sequence[Sequence[float]]
"""`[R, N]`: times of the same N requests in each round."""


def requests_needed(percent: float) -> int:
    """Requests from which on a percentile is reported: 10 for p50, 64 for p90, 130 for p95, 662 for p99.

    With n requests, all are faster than the percentile q with probability q^n; that must be at most `MISSED`.
    """
    return math.ceil(math.log(MISSED) / math.log(percent / 100))


def percentile(times: Sequence[float] | npt.NDArray[np.float64], percent: float) -> float | None:
    """The percentile by nearest rank; None with fewer than `requests_needed` times."""
    if len(times) < requests_needed(percent):
        return None
    return float(np.percentile(np.asarray(times, np.float64), percent, method="inverted_cdf"))


def student(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t distribution; `freedom` is rounded down, and is at least 1.

    From a table for few degrees of freedom, and by Cornish and Fisher's expansion from there on.
    """
    n = max(1, math.floor(freedom))
    if n <= len(STUDENT):
        return STUDENT[n - 1]
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / float(n) ** power for power, term in enumerate(terms))


@dataclass(frozen=True)
class Interval:
    """The ends of a 95 % interval."""

    low: float
    high: float


def interval(value: float, rounds: Sequence[float]) -> Interval | None:
    """The 95 % interval around `value`, from one number of each round. None with fewer than `FEWEST_ROUNDS`.

    Computed on logarithms, because times vary by factors.
    """
    if len(rounds) < FEWEST_ROUNDS:
        return None
    logs = np.log(np.asarray(rounds, np.float64))
    half = student(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Interval(value * math.exp(-half), value * math.exp(half))


@dataclass(frozen=True)
class Steadiness:
    """Whether the rounds took equally long. All are None with fewer than `FEWEST_ROUNDS` rounds."""

    drift: float | None = None
    """Median time of the later half of the rounds, divided by the median time of the earlier half, minus 1."""
    spread: float | None = None
    """Slowest minus fastest round, over the median round."""
    outliers: int | None = None
    """Times beyond `OUTLYING` times the median of their request. They are counted, and never left out."""
    worst: float | None = None
    """The largest of these ratios; None without outliers."""

    @property
    def steady(self) -> bool | None:
        """Whether both are within `DRIFT` and `SPREAD`; None: this was not checked."""
        if self.drift is None or self.spread is None:
            return None
        return abs(self.drift) <= DRIFT and self.spread <= SPREAD


def steadiness(times: Rounds) -> Steadiness:
    """Compares the rounds with each other. times: `[R, N]`."""
    table = np.asarray(times, np.float64)
    if len(table) < FEWEST_ROUNDS:
        return Steadiness()
    totals = table.sum(axis=1)
    half = len(totals) // 2
    drift = float(np.median(totals[-half:]) / np.median(totals[:half])) - 1
    spread = float((totals.max() - totals.min()) / np.median(totals))
    ratios = table / np.median(table, axis=0)
    outliers = int((ratios > OUTLYING).sum())
    return Steadiness(drift, spread, outliers, float(ratios.max()) if outliers else None)
