"""Which models run in which order, and which time counts. Fake translators advance a fake clock."""

from __future__ import annotations

from typing import Any

import pytest
from tests.benchmark.measure.test_latency import Clock, fake

from hmc.benchmark.measure import interleaved
from hmc.benchmark.measure.interleaved import time_requests
from hmc.serving import DecodeOptions


def test_the_fastest_round_of_each_request_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = Clock(), list[Any]()
    monkeypatch.setattr(interleaved, "time", clock)
    models = {
        "a": fake("a", [9.0, 0.1, 0.4, 0.3, 0.2], clock, calls),  # the first is the warm-up
        "b": fake("b", [9.0, 0.5, 0.5, 0.5, 0.5], clock, calls),
    }
    found = time_requests(models, ["x"] * 4, batch=2, options=DecodeOptions(beam_size=3), rounds=2)
    assert found == pytest.approx({"a": 150.0, "b": 500.0})
    assert [name for name, *_ in calls] == ["a", "b", "a", "a", "b", "b", "b", "b", "a", "a"]
    assert {(batch, beam) for _, batch, beam in calls} == {(2, 3)}
