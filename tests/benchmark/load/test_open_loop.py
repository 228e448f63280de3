"""The open loop in virtual time: when calls are sent, what is counted, when it stops, which rate is found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tests.benchmark.known_engines import virtually

from hmc.artifact import InvalidRequestError
from hmc.benchmark.load.open_loop import Ran, Reply, constant, poisson, read_trace, run_calls, search, sweep
from hmc.benchmark.load.results import LatencyObjective, LoadCall, LoadCurve, LoadPoint, load_point


def ran(needs: list[float], due: list[float], objective: LatencyObjective | None = None, *, at_once: int = 1) -> Ran:
    """Calls at a server that answers `at_once` calls at the same time, each after its own seconds."""

    async def main() -> Ran:
        turns = asyncio.Semaphore(at_once)

        async def send(number: int) -> Reply:
            async with turns:
                await asyncio.sleep(needs[number])
            return Reply("answered", level="full")

        return await run_calls(send, due, objective)

    return virtually(main())


def test_arrivals() -> None:
    assert constant(4.0, 1.0, 0) == [0.0, 0.25, 0.5, 0.75]
    times = poisson(50.0, 200.0, 7)
    assert times == poisson(50.0, 200.0, 7) != poisson(50.0, 200.0, 8)
    assert len(times) == pytest.approx(10_000, abs=300)  # three standard deviations
    assert np.diff(times).std() == pytest.approx(1 / 50, rel=0.05)  # as its mean: the gaps are exponential
    assert max(times) < 200


def test_a_trace_is_read_from_its_first_time_on(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text("10.5\n\n11\n11\n13.25\n")
    assert read_trace(file) == [0.0, 0.5, 0.5, 2.75]
    for text, message in (
        ("1\nx\n", "line 2 is 'x'"),
        ("2\n1\n", "line 2: times must"),
        ("1\n", "has 1 times"),
        ("1\n1\n", "no rate"),
    ):
        file.write_text(text)
        with pytest.raises(InvalidRequestError, match=message):
            read_trace(file)


def test_latency_counts_from_when_a_call_was_due() -> None:
    """The first call holds the server for a second; the others were due meanwhile, and are sent although it stalls."""
    found = ran([1.0, 0.1, 0.1, 0.1], [0.0, 0.25, 0.5, 3.0])
    assert [call.due_s for call in found.calls] == [0.0, 0.25, 0.5, 3.0]
    assert [call.latency_s for call in found.calls] == pytest.approx([1.0, 0.85, 0.7, 0.1])
    assert found.late_s == pytest.approx(0.0, abs=1e-6)


def test_it_stops_when_the_objective_cannot_be_kept() -> None:
    objective = LatencyObjective(150.0, share=0.9)  # of 100 calls ten may miss it
    found = ran([0.2] * 100, constant(10.0, 10.0, 0), objective, at_once=100)
    assert found.stopped
    assert len(found.calls) in (12, 13)  # the eleventh call is late 150 ms after it was due
    assert found.calls[-1].outcome == "cut"
    kept = ran([0.1] * 100, constant(10.0, 10.0, 0), objective, at_once=100)
    assert not kept.stopped
    assert len(kept.calls) == 100


def test_an_error_of_the_benchmark_itself_is_raised() -> None:
    async def broken(_: int) -> Reply:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        virtually(run_calls(broken, [0.0, 0.1]))


def test_answered_refused_and_failed_are_counted_apart() -> None:
    calls = [LoadCall(n / 10, 0.05, "answered", "OK", "full") for n in range(97)]
    calls += [LoadCall(9.7, 0.9, "answered", "OK", "h72"), LoadCall(9.8, 0.001, "refused", "OverloadedError")]
    calls += [LoadCall(9.9, 30.0, "failed", "DeadlineExceededError")]
    found = load_point(calls, rate=10.0, seconds=10.0, objective=LatencyObjective(100.0), late_s=0.002, stopped=False)
    assert (found.calls, found.answered, found.refused, found.failed, found.in_time) == (100, 98, 1, 1, 97)
    assert found.goodput == pytest.approx(9.7)
    assert (found.p50_ms, found.p90_ms, found.p99_ms) == (50.0, 50.0, None)
    assert found.levels == {"full": 97, "h72": 1}
    assert found.statuses == {"OK": 98, "OverloadedError": 1, "DeadlineExceededError": 1}
    assert not found.held  # three of a hundred missed it, and one may
    looser = load_point(
        calls, rate=10.0, seconds=10.0, objective=LatencyObjective(100.0, 0.97), late_s=0.002, stopped=False
    )
    assert looser.held


def point(rate: float, held: bool, *, late_s: float = 0.0) -> LoadPoint:
    calls = [LoadCall(n / rate, 0.05 if held else 9.0, "answered") for n in range(20)]
    return load_point(
        calls, rate=rate, seconds=20 / rate, objective=LatencyObjective(100.0), late_s=late_s, stopped=False
    )


@pytest.mark.parametrize("capacity", [0.7, 13.0, 900.0])
def test_the_search_finds_the_capacity(capacity: float) -> None:
    async def measure(rate: float) -> LoadPoint:
        return point(rate, rate <= capacity)

    points = virtually(search(measure, 10.0))
    curve = LoadCurve("full", "", "poisson", 4, LatencyObjective(100.0), tuple(points))
    assert curve.bracketed
    assert curve.saturation is not None
    assert capacity / 1.1 <= curve.saturation <= capacity
    assert [p.rate for p in points] == sorted(p.rate for p in points)


def test_rates_that_were_asked_for_end_with_the_first_that_is_not_held() -> None:
    async def measure(rate: float) -> LoadPoint:
        return point(rate, rate < 15)

    assert [p.rate for p in virtually(sweep(measure, [40.0, 10.0, 20.0, 30.0]))] == [10.0, 20.0]


def test_a_load_that_was_stopped_has_no_percentiles() -> None:
    calls = [LoadCall(n / 100, 0.05, "answered") for n in range(96)]
    calls += [LoadCall(0.96 + n / 100, 0.3, "cut", "no answer") for n in range(4)]  # the slowest of all
    objective = LatencyObjective(100.0)
    found = load_point(calls, rate=100.0, seconds=1.0, objective=objective, late_s=0.0, stopped=True, due=300)
    assert (found.p50_ms, found.p90_ms, found.p95_ms, found.drift, found.due) == (None, None, None, None, 300)


def test_few_calls_are_told() -> None:
    """Of 190 calls one may be late, so two decide."""

    def notes(due: int) -> list[str]:
        calls = [LoadCall(n / 19, 0.05, "answered") for n in range(due)]
        found = load_point(
            calls, rate=19.0, seconds=due / 19, objective=LatencyObjective(100.0), late_s=0.0, stopped=False
        )
        return LoadCurve("full", "", "constant", 4, LatencyObjective(100.0), (found,)).notes

    assert "few calls at 19 calls/s" in notes(190)[-1]
    assert "(late calls that suffice: 2 at most)" in notes(190)[-1]
    assert notes(662) == []


def test_a_generator_that_is_late_says_so() -> None:
    late = LoadCurve("full", "", "poisson", 4, LatencyObjective(100.0), (point(10.0, True, late_s=0.02),))
    assert "the generator sent calls up to 20 ms too late at 10 calls/s" in late.notes[0]
    good = LoadCurve("full", "", "poisson", 4, LatencyObjective(100.0), (point(10.0, True),))
    assert [note for note in good.notes if "generator" in note] == []
