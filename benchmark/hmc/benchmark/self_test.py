"""`hmc bench self-test`: whether the benchmark finds what is known to be there.

Engines of known latency are measured as real ones are. Most of it happens in virtual time, so that the answer depends
on the benchmark alone and takes seconds; one check uses the clock of this machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hmc.artifact.significance import bleu, bleu_statistics, p_value
from hmc.benchmark.load.open_loop import Reply, Send, constant, measure_rate, poisson, search
from hmc.benchmark.load.results import LatencyObjective, LoadPoint
from hmc.benchmark.measure.latency import Clock, LatencyResult, RequestSize, measure_latency
from hmc.benchmark.measure.machine import this_machine
from hmc.benchmark.report.changes import compare
from hmc.benchmark.report.results import BundleInfo, Conditions, LevelReport, Report, Sentence
from hmc.serving import DecodeOptions, Translation

T = TypeVar("T")
TOLERANCE = 0.02
"""Relative error that a percentile of injected latencies may have."""
PAIRS = 20
MOST_FALSE = 0
LEAST_FOUND = 19
"""Pairs of systems that are compared. Of equal ones none may be called different; of slower ones all but one must be
found."""
SLOWDOWN = 0.10
REQUESTS = 128
ROUNDS = 6
"""As `hmc bench run` times them by default."""
DRIFT = 0.01
JITTER = 0.05
STALLS = 0.005
"""The noise of the fake machine: standard deviations, in logarithms, of a round and of a request; and the share of
requests that take three times as long."""
BUSY = 0.15
PLANTED = 0.20
"""Of a shared machine: the standard deviation, in logarithms, of a round and of a report, so that rounds differ by 10
to 50 %; and how much slower one level is made."""
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Check:
    """One check of the self-test."""

    name: str
    expected: str
    found: str
    passed: bool


class FakeClock:
    """A clock that stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """Seconds since it was made."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Moves on at once."""
        self.now += seconds


class FakeEngine:
    """Takes known times, one after the other. It is a `Translates`."""

    def __init__(self, seconds: Sequence[float], clock: Clock) -> None:
        """The first request, which warms up and is not timed, takes none of them."""
        self._seconds = iter([0.0, *seconds])
        self._clock = clock

    def translate(
        self, texts: Sequence[str], options: DecodeOptions | None = None, *, segmentation: str = "auto"
    ) -> list[Translation]:
        """Waits, and returns the texts."""
        del options, segmentation
        until = self._clock.perf_counter() + next(self._seconds)
        self._clock.sleep(max(0.0, until - self._clock.perf_counter() - 0.001))
        while (left := until - self._clock.perf_counter()) > 0:  # awake, because a system may oversleep
            self._clock.sleep(0.0 if isinstance(self._clock, _Awake) else left)
        return [Translation(text, 0.0, 1, 1) for text in texts]


class _Awake:
    """The machine's clock; a sleep of no time only asks it again."""

    def perf_counter(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        if seconds:
            time.sleep(seconds)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while nothing is ready, and then at once."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def skip(self, seconds: float) -> None:
        """Moves on."""
        self._now += seconds


class _Skipping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen in this loop of virtual time")
        self._loop.skip(timeout)
        return super().select(0)


def virtually(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def self_test(clock: Clock | None = None, progress: Callable[[str], None] = lambda _: None) -> list[Check]:
    """All checks. clock: of the check that uses real time; by default the machine's."""
    checks: dict[str, Callable[[], list[Check]]] = {
        "percentiles of requests": lambda: recovered(clock or _Awake()),
        "percentiles under load": loaded,
        "a queue": queued,
        "saturation": saturated,
        "equal systems": lambda: flagged(0.0),
        "slower systems": lambda: flagged(SLOWDOWN),
        "a shared machine": on_a_shared_machine,
        "sacreBLEU's command": scored,
    }
    found = list[Check]()
    for name, check in checks.items():
        progress(name)
        found += check()
    return found


def recovered(clock: Clock) -> list[Check]:
    """The percentiles of requests of known times, 5 to 25 ms, measured as the requests of a level."""
    times = np.random.default_rng(1).permutation(np.linspace(0.005, 0.025, 700)).tolist()
    [result] = _timed({"fake": FakeEngine(times, clock)}, len(times), 1, clock)
    return _percentiles("requests", times, (result.p50_ms, result.p95_ms, result.p99_ms))


def loaded() -> list[Check]:
    """The percentiles of a server that answers any number of calls at once, each after a known time."""
    times = np.random.default_rng(2).lognormal(-3.0, 0.5, 5000).tolist()

    async def send(number: int) -> Reply:
        await asyncio.sleep(times[number])
        return Reply("answered")

    point = _virtual_rate(send, poisson(100.0, 40.0, 3), 40.0)
    known = times[: point.calls]
    return _percentiles("calls under load", known, (point.p50_ms, point.p95_ms, point.p99_ms))


def queued() -> list[Check]:
    """A server that answers one call at a time, and once stalls for two seconds. The waiting times of callers follow
    from the server's times (Lindley's recursion). They count from the time at which a call was due."""
    due = poisson(40.0, 60.0, 4)
    service = 0.01
    stall = 2.0
    needed = [stall if number == len(due) // 2 else service for number in range(len(due))]
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
    return _percentiles("calls at a server that stalls", waits, (point.p50_ms, point.p95_ms, point.p99_ms))


def saturated() -> list[Check]:
    """A server that answers exactly 25 calls a second, one after the other."""

    async def main() -> float:
        async def measure(rate: float) -> LoadPoint:
            turn = asyncio.Lock()

            async def send(_: int) -> Reply:
                async with turn:
                    await asyncio.sleep(1 / 25)
                return Reply("answered")

            return await measure_rate(
                send, constant(rate, 60.0, 0), rate=rate, seconds=60.0, objective=LatencyObjective(200.0)
            )

        points = await search(measure, 3.0)
        return max(point.rate for point in points if point.held)

    found = virtually(main())
    return [Check("saturation, calls/s", "22.5 to 25.5", f"{found:.1f}", 22.5 <= found <= 25.5)]


def flagged(slowdown: float) -> list[Check]:
    """How often `compare` says that a system became slower. Both are measured on a machine with noise."""
    worse = 0
    for number in range(PAIRS):
        reports = [_noisy(2 * number + which, 1.0 + which * slowdown) for which in (0, 1)]
        changes = compare(*reports)
        worse += changes.times[0].verdict != "same" if slowdown == 0 else changes.times[0].verdict == "worse"
    if slowdown == 0:
        return [
            Check("equal systems called different", f"at most {MOST_FALSE} of {PAIRS}", f"{worse}", worse <= MOST_FALSE)
        ]
    expected = f"at least {LEAST_FOUND} of {PAIRS}"
    return [Check(f"a slowdown of {slowdown:.0%} found", expected, f"{worse}", worse >= LEAST_FOUND)]


def on_a_shared_machine() -> list[Check]:
    """What `compare` says of two equal levels, and of two levels of which the second was made slower. The machine's
    rounds differ by 10 to 50 %, and its speed drifts between two reports."""
    wrong = better = 0
    for number in range(PAIRS):
        before, same, slower = (
            _two_levels(3 * number + which, slowdown, busy=True) for which, slowdown in enumerate((0.0, 0.0, PLANTED))
        )
        wrong += any(x.verdict in ("worse", "better") for x in compare(before, same).times)
        better += any(x.verdict == "better" for x in compare(before, slower).times)
    found = 0
    for number in range(PAIRS):
        before, slower = (_two_levels(900 + 2 * number + which, which * PLANTED, busy=False) for which in (0, 1))
        found += [x.verdict for x in compare(before, slower).times] == ["same", "worse"]
    return [
        Check("equal levels judged on a shared machine", f"0 of {PAIRS}", str(wrong), wrong == 0),
        Check("a slower level called better there", f"0 of {PAIRS}", str(better), better == 0),
        Check(f"{PLANTED:.0%} found in one of two levels", f"at least {LEAST_FOUND} of {PAIRS}", str(found),
              found >= LEAST_FOUND),
    ]  # fmt: skip


def scored() -> list[Check]:
    """BLEU and p-value of two systems, beside the numbers that sacreBLEU's command prints for the same files."""
    draw = random.Random(5)
    words = [f"word{n}" for n in range(60)]
    references = [" ".join(draw.choices(words, k=draw.randint(4, 20))) for _ in range(80)]

    def spoiled(share: float) -> list[str]:
        return [
            " ".join(draw.choice(words) if draw.random() < share else word for word in reference.split())
            for reference in references
        ]

    baseline = spoiled(0.25)
    system = spoiled(0.265)
    with TemporaryDirectory() as folder:
        files = {"ref": references, "baseline": baseline, "system": system}
        for name, lines in files.items():
            (Path(folder) / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        command = [sys.executable, "-m", "sacrebleu", "ref", "-i", "baseline", "system", "-m", "bleu", "--paired-ar"]
        ran = subprocess.run([*command, "-f", "json"], cwd=folder, capture_output=True, text=True, check=True)
    theirs = json.loads(ran.stdout[ran.stdout.index("[") :])
    own = [bleu_statistics(lines, references) for lines in (baseline, system)]
    rows = []
    for name, statistics, row in zip(("baseline", "system"), own, theirs, strict=True):
        expected = row["BLEU"]["score"]
        found = float(bleu(statistics.sum(axis=0)))
        rows.append(Check(f"BLEU of the {name}", f"{expected:.4f}", f"{found:.4f}", abs(expected - found) < 1e-3))
    expected = theirs[1]["BLEU"]["p_value"]
    found = p_value(own[1], own[0], bleu)
    return [*rows, Check("p-value", f"{expected:.4f}", f"{found:.4f}", abs(expected - found) < 1e-3)]


def _percentiles(name: str, known: Sequence[float], found: Sequence[float | None]) -> list[Check]:
    """known: seconds; found: milliseconds at `PERCENTILES`."""
    rows = []
    for percent, ms in zip(PERCENTILES, found, strict=True):
        expected = 1000.0 * float(np.percentile(known, percent))
        passed = ms is not None and abs(ms / expected - 1) <= TOLERANCE
        rows.append(
            Check(f"p{percent} of {name}, ms", f"{expected:.2f} ± 2 %", "none" if ms is None else f"{ms:.2f}", passed)
        )
    return rows


def _virtual_rate(send: Send, due: Sequence[float], seconds: float) -> LoadPoint:
    rate = len(due) / seconds
    return virtually(measure_rate(send, due, rate=rate, seconds=seconds, objective=LatencyObjective(1e9)))


def _timed(engines: dict[str, FakeEngine], requests: int, rounds: int, clock: Clock) -> list[LatencyResult]:
    first = next(iter(engines))
    return measure_latency(engines, ["x"] * requests, [RequestSize(1, 1)], rounds=rounds, reference=first, clock=clock)


def _noisy(seed: int, factor: float) -> Report:
    """A report of one engine on a noisy machine. factor: times as slow as the usual engine."""
    clock = FakeClock()
    rng = np.random.default_rng(seed)
    usual: npt.NDArray[np.float64] = np.random.default_rng(0).lognormal(-4.0, 0.5, REQUESTS)  # by length of sentence
    rounds = factor * usual * np.exp(rng.normal(0, DRIFT, (ROUNDS, 1)) + rng.normal(0, JITTER, (ROUNDS, REQUESTS)))
    rounds *= np.where(rng.random(rounds.shape) < STALLS, 3.0, 1.0)
    return _report(_timed({"fake": FakeEngine(rounds.ravel().tolist(), clock)}, REQUESTS, ROUNDS, clock))


def _two_levels(seed: int, slowdown: float, *, busy: bool) -> Report:
    """A report of two levels that share the rounds of a machine. slowdown: of the second. busy: whether the machine's
    rounds and reports differ much."""
    clock = FakeClock()
    rng = np.random.default_rng(seed)
    usual: npt.NDArray[np.float64] = np.random.default_rng(0).lognormal(-4.0, 0.5, REQUESTS)
    machine = np.exp(rng.normal(0, BUSY if busy else DRIFT, (ROUNDS, 1)) + (rng.normal(0, BUSY) if busy else 0.0))
    engines = {}
    for name, factor in (("full", 1.0), ("half", 0.5 * (1 + slowdown))):
        times = factor * usual * machine * np.exp(rng.normal(0, JITTER, (ROUNDS, REQUESTS)))
        engines[name] = FakeEngine(times.ravel().tolist(), clock)
    return _report(_timed(engines, REQUESTS, ROUNDS, clock))


def _report(latency: list[LatencyResult]) -> Report:
    size = RequestSize(1, 1)
    conditions = Conditions(
        test_set="fake", sentences=REQUESTS, timed_sentences=REQUESTS, timed_at_batch=(REQUESTS,), rounds=ROUNDS,
        batches=(1,), beams=(1,), headline=size, threads=1, quality_reference=None, latency_reference=latency[0].level,
        memory=False,
    )  # fmt: skip
    levels = tuple(LevelReport(each.level, 0, "fp32", 0, 0, "cpu", (), (each,)) for each in latency)
    machine = replace(this_machine(["cpu"]), load_average=0.0)
    sentences = tuple(Sentence("x", None, 1) for _ in range(REQUESTS))
    return Report("", BundleInfo("", "", "", ""), conditions, machine, levels, sentences=sentences)
