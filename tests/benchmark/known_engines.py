"""Engines of known latency, on a clock that stands still until somebody sleeps, and reports on them."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hmc.benchmark.load.open_loop import Send, measure_rate
from hmc.benchmark.load.results import LatencyObjective, LoadPoint
from hmc.benchmark.measure.latency import Clock, LatencyResult, RequestSize, measure_latency
from hmc.benchmark.measure.machine import this_machine
from hmc.benchmark.report.results import BundleInfo, Conditions, LevelReport, Report, Sentence
from hmc.serving import DecodeOptions, Translation

T = TypeVar("T")
REQUESTS = 128
ROUNDS = 6
"""As `hmc bench run` times them by default."""
DRIFT = 0.01
JITTER = 0.05
STALLS = 0.005
"""The noise of the fake machine: standard deviations, in logarithms, of a round and of a request; and the share of
requests that take three times as long."""
BUSY = 0.15
"""Of a shared machine: the standard deviation, in logarithms, of a round and of a report, so that rounds differ by 10
to 50 %."""


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
        self._clock.sleep(next(self._seconds))
        return [Translation(text, 0.0, 1, 1) for text in texts]


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


def virtual_rate(send: Send, due: Sequence[float], seconds: float) -> LoadPoint:
    rate = len(due) / seconds
    return virtually(measure_rate(send, due, rate=rate, seconds=seconds, objective=LatencyObjective(1e9)))


def timed(engines: dict[str, FakeEngine], requests: int, rounds: int, clock: Clock) -> list[LatencyResult]:
    first = next(iter(engines))
    return measure_latency(engines, ["x"] * requests, [RequestSize(1, 1)], rounds=rounds, reference=first, clock=clock)


def noisy(seed: int, factor: float) -> Report:
    """A report of one engine on a noisy machine. factor: times as slow as the usual engine."""
    clock = FakeClock()
    rng = np.random.default_rng(seed)
    usual: npt.NDArray[np.float64] = np.random.default_rng(0).lognormal(-4.0, 0.5, REQUESTS)  # by length of sentence
    rounds = factor * usual * np.exp(rng.normal(0, DRIFT, (ROUNDS, 1)) + rng.normal(0, JITTER, (ROUNDS, REQUESTS)))
    rounds *= np.where(rng.random(rounds.shape) < STALLS, 3.0, 1.0)
    return report_on(timed({"fake": FakeEngine(rounds.ravel().tolist(), clock)}, REQUESTS, ROUNDS, clock))


def two_levels(seed: int, slowdown: float, *, busy: bool) -> Report:
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
    return report_on(timed(engines, REQUESTS, ROUNDS, clock))


def report_on(latency: list[LatencyResult]) -> Report:
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
