"""Percentiles of the latest latencies, and what a request would take now."""

from __future__ import annotations

import pytest
from tests.serving.levels.test_choosing import level

from hmc.serving.client import LatencySummary
from hmc.serving.levels.latency import ENOUGH_REQUESTS, FEW_REQUESTS, FRESH_S, LatencyWindow, RequestTimes


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


SENTENCE, TEXT = 60, 30 * 60
"""Characters of a sentence, and of a text of thirty."""
BUNDLE = [level("full", 4, p95=40), level("h6", 2, p95=20), level("h3", 1, p95=10)]


@pytest.fixture
def times(now: list[float]) -> RequestTimes:
    return RequestTimes(BUNDLE, clock=lambda: now[0])


def test_before_any_request_what_is_recorded_counts(times: RequestTimes) -> None:
    assert times.p95_ms(SENTENCE) == {"full": 40, "h6": 20, "h3": 10}
    assert times.p95_ms(TEXT)["full"] > 5 * 40, "a text of thirty sentences takes longer"


def test_a_text_of_many_sentences_does_not_count_for_single_sentences(times: RequestTimes) -> None:
    times.add("full", TEXT, 0.4)
    assert times.p95_ms(SENTENCE)["full"] == pytest.approx(40, rel=0.2)
    for _ in range(ENOUGH_REQUESTS):
        times.add("full", TEXT, 0.5)
        times.add("full", SENTENCE, 0.03)
    assert times.p95_ms(SENTENCE)["full"] == 30
    assert times.p95_ms(TEXT)["full"] == 500


def test_what_a_level_took_lately_goes_before_what_is_recorded(times: RequestTimes) -> None:
    for _ in range(ENOUGH_REQUESTS - 1):
        times.add("full", SENTENCE, 0.1)
    times.add("full", SENTENCE, 0.5)
    found = times.p95_ms(SENTENCE)
    assert found["full"] == 100
    times.add("full", SENTENCE, 0.5)
    assert times.p95_ms(SENTENCE)["full"] == 500


def test_levels_that_serve_tell_how_slow_the_machine_is_for_those_that_are_idle(
    times: RequestTimes, now: list[float]
) -> None:
    for _ in range(ENOUGH_REQUESTS):
        times.add("full", SENTENCE, 0.02)  # a quiet machine: as recorded
        times.add("h3", SENTENCE, 0.005)
    now[0] += FRESH_S + 1
    for _ in range(ENOUGH_REQUESTS):
        times.add("h3", SENTENCE, 0.05)  # ten times as slow
    assert times.p95_ms(SENTENCE) == pytest.approx({"full": 400, "h6": 200, "h3": 50})


def test_a_rush_is_not_held_against_a_level(times: RequestTimes, now: list[float]) -> None:
    for _ in range(ENOUGH_REQUESTS):
        times.add("full", SENTENCE, 0.02)
    for _ in range(ENOUGH_REQUESTS):
        times.add("full", SENTENCE, 3.0)
    assert times.p95_ms(SENTENCE)["full"] == 3000
    now[0] += FRESH_S + 1
    assert times.p95_ms(SENTENCE)["full"] == pytest.approx(40)


def test_a_server_learns_how_fast_its_own_machine_is(now: list[float]) -> None:
    """It need not be the one on which the bundle was measured; or no times are recorded at all."""
    twice = RequestTimes(BUNDLE, clock=lambda: now[0])
    bare = RequestTimes([level("full", 4), level("h6", 2)], clock=lambda: now[0])
    assert bare.p95_ms(SENTENCE) == {}
    for _ in range(FEW_REQUESTS):
        twice.add("h6", SENTENCE, 0.02)
        bare.add("h6", SENTENCE, 0.02)
    now[0] += FRESH_S + 1
    assert twice.p95_ms(SENTENCE)["full"] == pytest.approx(80)
    assert 20 < bare.p95_ms(SENTENCE)["h6"] <= bare.p95_ms(SENTENCE)["full"] < 100
