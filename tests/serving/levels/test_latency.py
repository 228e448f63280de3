"""Percentiles of the latest latencies."""

from __future__ import annotations

import pytest

from hmc.serving.client import LatencySummary
from hmc.serving.levels.latency import LatencyWindow


@pytest.fixture
def now() -> list[float]:
    """The simulated time in seconds, as the only item of a list."""
    return [1000.0]


@pytest.fixture
def window(now: list[float]) -> LatencyWindow:
    return LatencyWindow(size=100, clock=lambda: now[0])


def test_percentiles_are_of_the_nearest_rank(window: LatencyWindow) -> None:
    assert window.summary() is None
    for milliseconds in range(100, 0, -1):
        window.add(milliseconds / 1000)
    assert window.summary() == LatencySummary(50, 95, 99, 100)


def test_only_the_latest_requests_count(window: LatencyWindow) -> None:
    for milliseconds in range(1, 201):
        window.add(milliseconds / 1000)
    assert window.summary() == LatencySummary(150, 195, 199, 100)


def test_only_recent_requests_count_if_so_asked(window: LatencyWindow, now: list[float]) -> None:
    window.add(1.0)
    now[0] += 10.0
    window.add(2.0)
    assert window.summary(within_s=10.0) == LatencySummary(1000, 2000, 2000, 2)
    assert window.summary(within_s=9.0) == LatencySummary(2000, 2000, 2000, 1)
    now[0] += 10.0
    assert window.summary(within_s=9.0) is None
    assert window.summary() == LatencySummary(1000, 2000, 2000, 2)
