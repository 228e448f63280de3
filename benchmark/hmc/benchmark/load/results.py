"""What became of the calls of a load, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hmc.benchmark.measure.latency import median_of
from hmc.benchmark.measure.validity import Interval, interval, percentile, requests_needed

Outcome = Literal["answered", "refused", "failed", "cut"]
"""refused: the server said that it has no room. failed: anything else without an answer. cut: the load was stopped
before the call had ended."""
SLICES = 8
"""Parts of the time of a load, over which intervals and steadiness are computed."""
LATE_SHARE = 0.1
"""A generator that sent a call later than this share of the objective measures itself."""
BUSY_SHARE = 0.7
"""A client of which a process takes more than this share of a core may be slower than the server."""
RISING = 0.25
"""A load whose later half waited longer than the earlier half by more than this share is not steady."""


@dataclass(frozen=True)
class LatencyObjective:
    """What a load has to keep."""

    milliseconds: float
    """A call is in time if it is answered within this, from when it was due."""
    share: float = 0.99
    """Share of the calls that have to be in time."""

    def misses(self, calls: int) -> int:
        """How many of so many calls may be late, refused or failed."""
        return int((1 - self.share) * calls + 1e-9)


@dataclass(frozen=True)
class LoadCall:
    """One call."""

    due_s: float
    """When it was due, from the start of the load."""
    latency_s: float
    """From then to its end."""
    outcome: Outcome
    status: str = "OK"
    """The error's name; OK for an answer."""
    level: str = ""
    """The level that answered."""
    retry_after_s: float | None = None
    """When the server said to come again."""


@dataclass(frozen=True)
class LoadPoint:
    """The calls of one rate. Latencies are of answered calls, from when they were due."""

    rate: float
    """Calls a second that were due; of one that was `stopped`, had it gone on."""
    seconds: float
    """Over which they were due; less than was asked for if `stopped`."""
    calls: int
    answered: int
    refused: int
    failed: int
    cut: int
    in_time: int
    goodput: float
    """Calls in time a second."""
    p50_ms: float | None
    """Percentiles are None with too few answers, and if `stopped`: the slowest calls were cut."""
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    p50_interval: Interval | None
    """95 %, over slices of the time."""
    drift: float | None
    """Median latency of the later half, divided by the earlier half's, minus 1; None with too few calls."""
    late_ms: float
    """The longest time by which the generator sent a call too late. It is part of the latency."""
    stopped: bool
    """Whether the load was stopped early, because the objective was already missed."""
    held: bool
    """Whether the objective was kept."""
    levels: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    samples: tuple[tuple[float, float, str], ...] = ()
    """Of each call: seconds when it was due, milliseconds, outcome."""
    due: int = 0
    """Calls that the whole load would have had; more than `calls` if `stopped`."""
    client_share: float = 0.0
    """Share of a core that the busiest process of the client took. Above BUSY_SHARE, the client may be the limit."""
    processes: int = 1
    """Of the client."""

    @property
    def verdict(self) -> str:
        """The outcome of the objective, in a word."""
        if self.held:
            return "held"
        return "stopped" if self.stopped else "missed"


@dataclass(frozen=True)
class LoadCurve:
    """Several rates of the same calls."""

    name: str
    """The level asked for."""
    server: str
    arrivals: str
    """poisson, constant, or the name of a trace."""
    beam: int
    objective: LatencyObjective
    points: tuple[LoadPoint, ...]
    """By rate."""

    @property
    def saturation(self) -> float | None:
        """The highest held rate below every rate that was not held. None: no rate was held."""
        missed = min((point.rate for point in self.points if not point.held), default=float("inf"))
        return max((point.rate for point in self.points if point.held and point.rate < missed), default=None)

    @property
    def bracketed(self) -> bool:
        """Whether a higher rate was tried that was not held. If not, the server carries at least `saturation`."""
        return any(not point.held for point in self.points)

    @property
    def notes(self) -> list[str]:
        """Limits of what the numbers show, a sentence each."""
        notes = []
        limit = LATE_SHARE * self.objective.milliseconds
        if late := [point for point in self.points if point.late_ms > limit]:
            notes.append(
                f"the generator sent calls up to {max(p.late_ms for p in late):.0f} ms too late at "
                f"{_rates(late)} calls/s: it needs a core of its own, or another machine."
            )
        if busy := [point for point in self.points if point.client_share > BUSY_SHARE]:
            busiest = max(busy, key=lambda point: point.client_share)
            notes.append(
                f"the client was the limit at {_rates(busy)} calls/s: the busiest of its processes "
                f"({busiest.processes}) took {busiest.client_share:.0%} of a core. Run it on another machine, "
                "or with more cores."
            )
        if rising := [p for p in self.points if p.held and p.drift is not None and p.drift > RISING]:
            notes.append(f"latencies still rose at {_rates(rising)} calls/s: measure each rate for longer.")
        if few := [p for p in self.points if not p.stopped and p.answered < requests_needed(99)]:
            notes.append(f"no p99 at {_rates(few)} calls/s: fewer than {requests_needed(99)} answers.")
        share = self.objective.share
        if weak := [p for p in self.points if share < 1 and 0 < p.due < requests_needed(100 * share)]:
            most = 1 + max(self.objective.misses(point.due) for point in weak)
            notes.append(
                f"few calls at {_rates(weak)} calls/s: a short stall of the machine decides whether they are held "
                f"(late calls that suffice: {most} at most). Measure each rate for longer."
            )
        return notes


def _rates(points: Sequence[LoadPoint]) -> str:
    return ", ".join(f"{point.rate:.3g}" for point in points)


def load_point(
    calls: Sequence[LoadCall],
    *,
    rate: float,
    seconds: float,
    objective: LatencyObjective,
    late_s: float,
    stopped: bool,
    due: int | None = None,
    client_share: float = 0.0,
    processes: int = 1,
) -> LoadPoint:
    """Counts calls, which are in the order in which they were due. seconds: over which they were due. due: number of
    calls of the whole load. None: only these calls. client_share, processes: see `LoadPoint`."""
    done = [call for call in calls if call.outcome == "answered"]
    times = [1000.0 * call.latency_s for call in done]
    count = Counter(call.outcome for call in calls)
    in_time = sum(ms <= objective.milliseconds for ms in times)
    counted = len(calls) - count["cut"]
    whole = [] if stopped else done  # of a load that was stopped, the slowest calls have no answer
    answers = [1000.0 * call.latency_s for call in whole]
    p50 = percentile(answers, 50)
    return LoadPoint(
        rate=rate,
        seconds=seconds,
        calls=len(calls),
        answered=len(done),
        refused=count["refused"],
        failed=count["failed"],
        cut=count["cut"],
        in_time=in_time,
        goodput=in_time / seconds,
        p50_ms=p50,
        p90_ms=percentile(answers, 90),
        p95_ms=percentile(answers, 95),
        p99_ms=percentile(answers, 99),
        p50_interval=None if p50 is None else _over_slices(p50, whole, seconds),
        drift=_drift(whole, seconds),
        late_ms=1000.0 * late_s,
        stopped=stopped,
        held=not stopped and bool(calls) and counted - in_time <= objective.misses(len(calls)),
        levels=dict(Counter(call.level for call in done if call.level)),
        statuses=dict(Counter(call.status for call in calls)),
        samples=tuple((round(c.due_s, 5), round(1000.0 * c.latency_s, 3), c.outcome) for c in calls),
        due=len(calls) if due is None else due,
        client_share=client_share,
        processes=processes,
    )


def _over_slices(p50: float, done: Sequence[LoadCall], seconds: float) -> Interval | None:
    parts: list[list[float]] = [[] for _ in range(SLICES)]
    for call in done:
        parts[min(SLICES - 1, int(SLICES * call.due_s / seconds))].append(1000.0 * call.latency_s)
    medians = [median_of(part) for part in parts if part]
    return interval(p50, medians) if len(medians) == SLICES and min(medians) > 0 else None


def _drift(done: Sequence[LoadCall], seconds: float) -> float | None:
    first = [call.latency_s for call in done if call.due_s < seconds / 2]
    second = [call.latency_s for call in done if call.due_s >= seconds / 2]
    if min(len(first), len(second)) < requests_needed(50):
        return None
    earlier = float(np.median(first))
    return float(np.median(second)) / earlier - 1 if earlier else None
