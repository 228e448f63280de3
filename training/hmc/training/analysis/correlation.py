"""Pearson's and Spearman's correlation, with intervals and p-values that need no tables of distributions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from hmc.artifact.errors import InvalidRequestError

Floats = npt.NDArray[np.float64]
PERMUTATIONS = 9999
LEAST = 4
"""Points below which Fisher's transformation has no interval."""


@dataclass(frozen=True)
class Correlation:
    """A coefficient r with its 95 % interval and the p-value of r = 0."""

    value: float
    low: float
    high: float
    p_value: float
    """Two-sided permutation test: (1 + permutations with |r| as large) / (1 + permutations)."""

    def to_json(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def pearson(x: Floats, y: Floats, seed: int) -> Correlation:
    """Linear correlation of `[N]` and `[N]`; Fisher's interval, standard error 1 / √(N - 3).

    Raises InvalidRequestError for fewer than four points, or for values that are all the same.
    """
    value, p_value = _coefficient(x, y, seed)
    return _with_interval(value, p_value, 1 / math.sqrt(max(len(x) - 3, 1)))


def spearman(x: Floats, y: Floats, seed: int) -> Correlation:
    """Correlation of ranks, ties sharing their mean rank; standard error √((1 + r²/2) / (N - 3)) (Bonett and Wright
    2000). Raises as `pearson`."""
    value, p_value = _coefficient(ranks(x), ranks(y), seed)
    return _with_interval(value, p_value, math.sqrt((1 + value**2 / 2) / max(len(x) - 3, 1)))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]


def _coefficient(x: Floats, y: Floats, seed: int) -> tuple[float, float]:
    if len(x) < LEAST:
        raise InvalidRequestError(f"{len(x)} heads: a correlation needs {LEAST} or more")
    x, y = x - x.mean(), y - y.mean()
    norm = math.sqrt(float(x @ x) * float(y @ y))
    if not norm:
        raise InvalidRequestError("all heads have the same value on one of the texts: there is no correlation")
    value = float(x @ y) / norm
    rng = np.random.default_rng(seed)
    shuffled = np.array([x @ rng.permutation(y) for _ in range(PERMUTATIONS)]) / norm
    as_large = int(np.sum(np.abs(shuffled) >= abs(value) - 1e-12))
    return max(-1.0, min(1.0, value)), (1 + as_large) / (1 + PERMUTATIONS)


def _with_interval(value: float, p_value: float, error: float) -> Correlation:
    if abs(value) > 1 - 1e-12:
        return Correlation(value, value, value, p_value)
    z, reach = math.atanh(value), NormalDist().inv_cdf(0.975) * error
    return Correlation(value, math.tanh(z - reach), math.tanh(z + reach), p_value)
