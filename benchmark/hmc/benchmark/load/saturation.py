"""Which rates are tried: those that were asked for, until one is not held; or a search for the highest that is."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from hmc.benchmark.load.results import LoadPoint

TOLERANCE = 1.1
"""The search ends when the lowest rate that was not held is at most so many times the highest that was."""
LEAST, MOST = 0.05, 100_000.0
"""Rates, in calls a second, beyond which nothing is tried."""

Measure = Callable[[float], Awaitable[LoadPoint]]
"""Measures a rate, in calls a second."""


async def sweep(measure: Measure, rates: Sequence[float]) -> list[LoadPoint]:
    """Measures rates from the lowest, and stops after the first that is not held."""
    found: list[LoadPoint] = []
    for rate in sorted(rates):
        found.append(await measure(rate))
        if not found[-1].held:
            break
    return found


async def search(measure: Measure, start: float) -> list[LoadPoint]:
    """Finds the highest rate that is held: doubles or halves from `start`, then halves the gap on a logarithmic scale.

    Returns all rates that were tried, by rate. What is tried is the rate asked for; a point has that of its calls.
    """
    found: list[LoadPoint] = []

    async def held(rate: float) -> bool:
        found.append(await measure(rate))
        return found[-1].held

    low = high = start
    if await held(start):
        while (high := 2 * low) <= MOST and await held(high):
            low = high
    else:
        while (low := high / 2) >= LEAST and not await held(low):
            high = low
    while low >= LEAST and high <= MOST and high / low > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if await held(middle) else (low, middle)
    return sorted(found, key=lambda point: point.rate)
