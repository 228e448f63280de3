"""Which requests run, in which order, and how times are evaluated. Fake translators advance a fake clock."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.benchmark.fakes import FakeTranslator

from hmc.artifact import InvalidRequestError
from hmc.benchmark.measure import latency
from hmc.benchmark.measure.latency import RequestSize, measure_latency, requests_of, rotated, time_requests
from hmc.serving import DecodeOptions


class Clock:
    """Stands in for the module `time`; sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(latency, "time", made)
    return made


def fake(name: str, seconds: Sequence[float], clock: Clock, calls: list[Any]) -> FakeTranslator:
    """Takes `seconds` for one request after another, from the start again at the end."""
    count = iter(range(10**6))

    def call(texts: Sequence[str], beam: int) -> None:
        clock.now += seconds[next(count) % len(seconds)]
        calls.append((name, len(texts), beam))

    return FakeTranslator(lambda _: "a b c", call)


def test_levels_take_turns_and_the_first_request_is_left_out(clock: Clock) -> None:
    calls: list[Any] = []
    levels = {name: fake(name, [0.01], clock, calls) for name in ("full", "h72", "h36")}
    measure_latency(levels, ["x"] * 4, [RequestSize(2, 5)], rounds=2, reference="full")
    warm, first, second = calls[:3], calls[3:9], calls[9:]
    assert warm == [("full", 2, 5), ("h72", 2, 5), ("h36", 2, 5)]
    assert [name for name, *_ in first] == ["full", "h72", "h36", "h72", "h36", "full"]
    assert [name for name, *_ in second] == ["h72", "h36", "full", "h36", "full", "h72"]


def test_a_round_has_turns_of_several_requests(clock: Clock) -> None:
    calls: list[Any] = []
    levels = {name: fake(name, [0.01], clock, calls) for name in ("full", "h36")}
    [full, _] = measure_latency(levels, ["x"] * 10, [RequestSize(1, 1)], rounds=1, reference="full")
    names = [name for name, *_ in calls[2:]]
    turns = [["full"] * 3 + ["h36"] * 3, ["h36"] * 3 + ["full"] * 3, ["full"] * 3 + ["h36"] * 3, ["h36", "full"]]
    assert names == [name for turn in turns for name in turn]
    assert len(full.samples_ms[0]) == 10


def test_numbers_by_hand(clock: Clock) -> None:
    calls: list[Any] = []
    levels = {
        "full": fake("full", [9.0, 0.1, 0.2, 0.3, 0.4], clock, calls),  # the first is the warm-up
        "h36": fake("h36", [9.0, 0.1, 0.1, 0.1, 0.1], clock, calls),
    }
    full, small = measure_latency(levels, ["x"] * 4, [RequestSize(2, 1)], rounds=2, reference="full")
    assert full.requests == small.requests == 4
    assert full.p50_ms == pytest.approx(200)
    assert (full.p90_ms, full.p95_ms, full.p99_ms) == (None, None, None)  # of four requests
    assert [list(times) for times in full.samples_ms] == [pytest.approx([100, 200]), pytest.approx([300, 400])]
    assert full.sentences_per_s == pytest.approx(8 / 1.0)
    assert full.tokens_per_s == pytest.approx(8 * 4 / 1.0)  # three words and the end of sentence
    assert full.ratio == 1
    # Rounds: 0.2 s against 0.3 s, and 0.2 s against 0.7 s; the median of two is their mean.
    assert small.ratio == pytest.approx((0.2 / 0.3 + 0.2 / 0.7) / 2)
    assert (small.level, small.batch, small.beam) == ("h36", 2, 1)


def test_every_setting_has_every_level(clock: Clock) -> None:
    levels = {name: fake(name, [0.01], clock, []) for name in ("full", "h36")}
    said: list[str] = []
    settings = [RequestSize(1, 1), RequestSize(2, 4)]
    found = measure_latency(levels, ["x"] * 4, settings, rounds=1, reference="full", progress=said.append)
    assert [(r.level, r.batch, r.beam, r.requests) for r in found] == [
        ("full", 1, 1, 4),
        ("h36", 1, 1, 4),
        ("full", 2, 4, 2),
        ("h36", 2, 4, 2),
    ]
    assert said == ["batch 1, beam 1: round 1 of 1", "batch 2, beam 4: round 1 of 1"]


def test_requests_keep_the_order_and_are_of_one_size() -> None:
    assert requests_of("abcde", 2) == [["a", "b"], ["c", "d"]]
    assert requests_of("abc", 3) == [["a", "b", "c"]]
    with pytest.raises(InvalidRequestError, match="batch 8: only 3 sentences can be timed"):
        requests_of("abc", 8)


def test_each_round_another_level_goes_first() -> None:
    assert [rotated("abc", turn) for turn in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_the_fastest_round_of_each_request_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = Clock(), list[Any]()
    monkeypatch.setattr(latency, "time", clock)
    models = {
        "a": fake("a", [9.0, 0.1, 0.4, 0.3, 0.2], clock, calls),  # the first is the warm-up
        "b": fake("b", [9.0, 0.5, 0.5, 0.5, 0.5], clock, calls),
    }
    found = time_requests(models, ["x"] * 4, batch=2, options=DecodeOptions(beam_size=3), rounds=2)
    assert found == pytest.approx({"a": 150.0, "b": 500.0})
    assert [name for name, *_ in calls] == ["a", "b", "a", "a", "b", "b", "b", "b", "a", "a"]
    assert {(batch, beam) for _, batch, beam in calls} == {(2, 3)}
