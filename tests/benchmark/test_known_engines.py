"""The benchmark finds what is known to be there, measured as real engines are. Where it would not, these tests notice.

Nearly all of it happens in virtual time, so that it depends on the benchmark alone.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.benchmark.known_engines import (
    FakeClock,
    FakeEngine,
    noisy,
    timed,
    two_levels,
    virtual_rate,
    virtually,
)  # fmt: skip

from hmc.artifact.significance import bleu, bleu_statistics, p_value
from hmc.benchmark.load.open_loop import Reply, constant, measure_rate, poisson, search
from hmc.benchmark.load.results import LatencyObjective, LoadPoint
from hmc.benchmark.report.changes import compare

PAIRS = 20
LEAST_FOUND = 19
"""Pairs of systems that are compared. Of equal ones none may be called different; of slower ones all but one must be
found."""
PLANTED = 0.20
"""How much slower one of two levels is made."""


def close(found: Sequence[float | None], known: Sequence[float]) -> bool:
    """found: p50, p95 and p99 in milliseconds. known: seconds of all requests. Percentiles may be 2 % off."""
    expected = 1000.0 * np.percentile(known, (50, 95, 99))
    return found == pytest.approx(expected.tolist(), rel=0.02)


def requests_are_recovered(clock: FakeClock) -> bool:
    """Requests of known times, 5 to 25 ms, measured as the requests of a level."""
    times = np.random.default_rng(1).permutation(np.linspace(0.005, 0.025, 700)).tolist()
    [result] = timed({"fake": FakeEngine(times, clock)}, len(times), 1, clock)
    return close((result.p50_ms, result.p95_ms, result.p99_ms), times)


def load_is_recovered() -> bool:
    """A server that answers any number of calls at once, each after a known time."""
    times = np.random.default_rng(2).lognormal(-3.0, 0.5, 5000).tolist()

    async def send(number: int) -> Reply:
        await asyncio.sleep(times[number])
        return Reply("answered")

    point = virtual_rate(send, poisson(100.0, 40.0, 3), 40.0)
    return close((point.p50_ms, point.p95_ms, point.p99_ms), times[: point.calls])


def queue_is_recovered() -> bool:
    """A server that answers one call at a time, and once stalls for two seconds. The waiting times of callers follow
    from the server's times (Lindley's recursion). They count from the time at which a call was due."""
    due = poisson(40.0, 60.0, 4)
    needed = [0.01] * len(due)
    needed[len(due) // 2] = 2.0
    free = 0.0
    waits = []
    for at, needs in zip(due, needed, strict=True):
        free = max(free, at) + needs
        waits.append(free - at)

    async def main() -> LoadPoint:
        turn = asyncio.Lock()

        async def send(number: int) -> Reply:
            async with turn:
                await asyncio.sleep(needed[number])
            return Reply("answered")

        return await measure_rate(send, due, rate=40.0, seconds=60.0, objective=LatencyObjective(1e9))

    point = virtually(main())
    return close((point.p50_ms, point.p95_ms, point.p99_ms), waits)


def test_known_latencies_are_found() -> None:
    assert requests_are_recovered(FakeClock())
    assert load_is_recovered()
    assert queue_is_recovered()


class Lying(FakeClock):
    """Adds a millisecond to every second time that it is asked for."""

    asked = 0

    def perf_counter(self) -> float:
        self.asked += 1
        return self.now + 0.001 * (self.asked % 2 == 0)


def test_a_wrong_clock_is_noticed() -> None:
    assert not requests_are_recovered(Lying())


def test_a_load_that_forgets_the_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency from when a call was sent, by a client that waits for answers: coordinated omission."""
    from hmc.benchmark.load.open_loop import _Load

    plain = _Load._one

    async def closed(self: _Load, number: int, due: float) -> None:
        del due
        await plain(self, number, self._clock() - self._began + 0.01)

    monkeypatch.setattr(_Load, "_one", closed)
    assert not (load_is_recovered() and queue_is_recovered())


def test_saturation_is_found_from_far_below() -> None:
    """A server that answers exactly 25 calls a second, one after the other."""

    async def measure(rate: float) -> LoadPoint:
        turn = asyncio.Lock()

        async def send(_: int) -> Reply:
            async with turn:
                await asyncio.sleep(1 / 25)
            return Reply("answered")

        due = constant(rate, 60.0, 0)
        return await measure_rate(send, due, rate=rate, seconds=60.0, objective=LatencyObjective(200.0))

    points = virtually(search(measure, 3.0))
    assert 22.5 <= max(point.rate for point in points if point.held) <= 25.5


def verdicts(slowdown: float) -> list[str]:
    """What `compare` says of `PAIRS` systems and a slower one each, measured on a machine with noise."""
    pairs = [(noisy(2 * number, 1.0), noisy(2 * number + 1, 1.0 + slowdown)) for number in range(PAIRS)]
    return [compare(*pair).times[0].verdict for pair in pairs]


def test_equal_systems_are_not_called_different() -> None:
    assert set(verdicts(0.0)) == {"same"}


@pytest.mark.parametrize(("slowdown", "least", "most"), [(0.10, LEAST_FOUND, PAIRS), (0.02, 0, 0)])
def test_a_slowdown_is_found_unless_it_is_within_the_noise(slowdown: float, least: int, most: int) -> None:
    assert least <= verdicts(slowdown).count("worse") <= most


def test_a_shared_machine_decides_nothing() -> None:
    """Its rounds differ by 10 to 50 %, and its speed drifts between two reports."""
    for number in range(PAIRS):
        before = two_levels(3 * number, 0.0, busy=True)
        same = two_levels(3 * number + 1, 0.0, busy=True)
        slower = two_levels(3 * number + 2, PLANTED, busy=True)
        assert not {"worse", "better"} & {times.verdict for times in compare(before, same).times}
        assert "better" not in {times.verdict for times in compare(before, slower).times}


def test_one_slower_level_of_two_is_found() -> None:
    found = 0
    for number in range(PAIRS):
        before = two_levels(900 + 2 * number, 0.0, busy=False)
        slower = two_levels(901 + 2 * number, PLANTED, busy=False)
        found += [times.verdict for times in compare(before, slower).times] == ["same", "worse"]
    assert found >= LEAST_FOUND


def test_scores_are_those_of_sacrebleus_command(tmp_path: Path) -> None:
    draw = random.Random(5)
    words = [f"word{n}" for n in range(60)]
    references = [" ".join(draw.choices(words, k=draw.randint(4, 20))) for _ in range(80)]

    def spoiled(share: float) -> list[str]:
        lines = []
        for reference in references:
            kept = [draw.choice(words) if draw.random() < share else word for word in reference.split()]
            lines.append(" ".join(kept))
        return lines

    baseline = spoiled(0.25)
    system = spoiled(0.265)
    for name, lines in {"ref": references, "baseline": baseline, "system": system}.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "baseline", "system", "-m", "bleu", "--paired-ar"]
    ran = subprocess.run([*command, "-f", "json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    theirs = json.loads(ran.stdout[ran.stdout.index("[") :])
    own = [bleu_statistics(lines, references) for lines in (baseline, system)]
    for statistics, row in zip(own, theirs, strict=True):
        assert float(bleu(statistics.sum(axis=0))) == pytest.approx(row["BLEU"]["score"], abs=1e-3)
    assert p_value(own[1], own[0], bleu) == pytest.approx(theirs[1]["BLEU"]["p_value"], abs=1e-3)
