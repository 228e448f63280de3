"""Levels and callers in simulated time: the levels that `auto` chooses for texts, and how long each takes.

A level has slots, each of which takes a text and has it for `seconds`; texts wait in one line for a slot. Arrivals are
regular, so every run gives the same numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.serving.fakes import FakeClock

from hmc.artifact import Level
from hmc.serving.levels.choosing import LevelCandidate
from hmc.serving.levels.controller import AutoController, AutoPolicy
from hmc.serving.levels.latency import LatencyWindow


@dataclass
class SimulatedLevel:
    """A level that does `slots / seconds` texts a second."""

    level: Level
    seconds: float
    clock: FakeClock
    slots: int = 8
    predicts: bool = True
    """Whether it says how long a new text will take, as engines do."""
    failed: bool = False
    recent: LatencyWindow = field(init=False)
    _free: list[float] = field(init=False)
    _ends: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recent = LatencyWindow(10_000, self.clock)
        self._free = [0.0] * self.slots

    def candidate(self) -> LevelCandidate:
        wait = max(0.0, self._free[0] - self.clock.now)
        expected = wait + self.seconds if self.predicts else None
        return LevelCandidate(self.level, len(self._ends), None, self.recent, self.recent, expected, self.failed)

    def take(self) -> float:
        """A text arrives now. Returns its latency in seconds."""
        end = max(self.clock.now, heapq.heappop(self._free)) + self.seconds
        heapq.heappush(self._free, end)
        heapq.heappush(self._ends, (end, end - self.clock.now))
        return end - self.clock.now

    def ends(self, until: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """The texts that end before `until`: when each does, and what tells of it."""
        while self._ends and self._ends[0][0] <= until:
            end, latency = heapq.heappop(self._ends)
            yield end, lambda latency=latency: self.recent.add(latency)  # type: ignore[misc]


@dataclass
class Run:
    """What happened: a row for each text."""

    times: list[float] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    switches: int = 0

    def goodput(self, within_s: float, since: float = 0.0, until: float = float("inf")) -> float:
        """The share of the texts of a period that took at most `within_s`."""
        seen = [took for at, took in zip(self.times, self.latencies, strict=True) if since <= at < until]
        return sum(took <= within_s for took in seen) / len(seen)

    def first(self, level: str, since: float) -> float:
        """When a text first got this level, from `since` on."""
        return next(at for at, name in zip(self.times, self.levels, strict=True) if at >= since and name == level)

    def used(self, since: float, until: float) -> list[str]:
        """The levels that texts of a period got, in the order of their first use."""
        return list(dict.fromkeys(n for at, n in zip(self.times, self.levels, strict=True) if since <= at < until))


def simulate(
    levels: Sequence[SimulatedLevel], clock: FakeClock, arrivals: Sequence[float], policy: AutoPolicy | None
) -> Run:
    """Texts arrive at these times. policy: of `auto`; None: every text gets the first level."""
    controller, run = AutoController(policy or AutoPolicy(), clock), Run()
    for at in arrivals:
        for end, tell in sorted((e for level in levels for e in level.ends(at)), key=lambda event: event[0]):
            clock.now = end
            tell()
        clock.now = at
        name = controller.choose([each.candidate() for each in levels]).name if policy else levels[0].level.name
        run.times.append(at)
        run.levels.append(name)
        run.latencies.append(next(each for each in levels if each.level.name == name).take())
    run.switches = controller.switches
    return run


def regular(*phases: tuple[float, float]) -> list[float]:
    """Arrival times of phases, each of so many seconds with so many texts a second."""
    times, began = [], 0.0
    for seconds, rate in phases:
        times += [began + n / rate for n in range(int(seconds * rate))]
        began += seconds
    return times
