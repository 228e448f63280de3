"""Which percentiles may be said, how sure numbers are, and whether rounds were alike. All samples are made here."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.benchmark.measure.validity import interval, percentile, requests_needed, steadiness, student


def test_a_percentile_needs_its_requests() -> None:
    assert [requests_needed(percent) for percent in (50, 90, 95, 99)] == [10, 64, 130, 662]
    for percent, fewest in ((90, 64), (99, 662)):
        assert percentile(list(range(fewest - 1)), percent) is None
        assert percentile(list(range(fewest)), percent) == np.ceil(fewest * percent / 100) - 1


def test_the_quantiles_of_student() -> None:
    tables = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042}
    assert {freedom: student(freedom) for freedom in tables} == pytest.approx(tables, rel=0.01)


def test_the_interval_holds_the_true_value_95_times_of_100() -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(1000):
        rounds = np.exp(rng.normal(0.0, 0.05, 6))
        found = interval(float(np.exp(np.log(rounds).mean())), rounds.tolist())
        assert found is not None
        held += found.low <= 1.0 <= found.high
    assert 930 <= held <= 970  # three standard deviations around 950
    assert interval(1.0, [1.0]) is None
    assert interval(1.0, [0.9, 1.1]) is None  # of two rounds it would say nothing
    assert interval(1.0, [0.9, 1.0, 1.1]) is not None


def test_a_machine_that_slows_down_is_not_steady() -> None:
    even = [[10.0] * 8] * 4
    assert steadiness(even).steady is True
    slower = [[10.0] * 8, [10.0] * 8, [11.0] * 8, [11.0] * 8]
    assert steadiness(slower).drift == pytest.approx(0.1)
    assert steadiness(slower).steady is False
    one_round = [[10.0] * 8, [13.0] * 8, [10.0] * 8, [10.0] * 8]
    assert steadiness(one_round).spread == pytest.approx(0.3)
    assert steadiness(one_round).steady is False
    assert steadiness(even[:2]).steady is None  # two rounds are too few to say


def test_outliers_are_times_beyond_those_of_the_same_request() -> None:
    times = [[10.0, 100.0]] * 4 + [[25.0, 100.0]]
    found = steadiness(times)
    assert (found.outliers, found.worst) == (1, 2.5)
    assert steadiness(times[:4]).outliers == 0  # a long request is none
