"""Calls at times that were fixed beforehand, whether or not earlier calls are answered (an open loop).

A loop that waits for an answer before it sends the next call sends less to a server that stalls, and so measures the
stall once and not for everybody who would have waited. Here the latency of a call runs from when it was due.
Calls are due at random, evenly, or as a file says. The rates are those that were asked for, until one is not held; or a
search finds the highest that is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from hmc.artifact.errors import InvalidRequestError
from hmc.benchmark.load.results import LatencyObjective, LoadCall, LoadPoint, Outcome, load_point

Arrivals = Callable[[float, float, int], list[float]]
"""(calls a second, seconds, seed) → the times at which calls are due, before `seconds`."""
ArrivalProcess = Literal["poisson", "constant"]


def poisson(rate: float, seconds: float, seed: int) -> list[float]:
    """Calls of many independent callers: a Poisson process."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=int(2 * rate * seconds) + 20)
    return [at for at in np.cumsum(gaps).tolist() if at < seconds]


def constant(rate: float, seconds: float, seed: int) -> list[float]:  # noqa: ARG001 - an `Arrivals`
    """One call every 1 / rate seconds, the first at once."""
    return [number / rate for number in range(int(np.ceil(rate * seconds))) if number / rate < seconds]


ARRIVALS: dict[ArrivalProcess, Arrivals] = {"poisson": poisson, "constant": constant}


def read_trace(path: Path) -> list[float]:
    """Times from a file, one a line: seconds, rising. The first call is due at once, whatever its time is.

    Raises InvalidRequestError naming the line at fault.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path}: cannot be read: {error}") from error
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            at = float(line)
        except ValueError as error:
            raise InvalidRequestError(f"{path}: line {number} is {line!r}; write one time in seconds a line") from error
        if not np.isfinite(at) or (times and at < times[-1]):
            raise InvalidRequestError(f"{path}: line {number}: times must be finite and must not fall")
        times.append(at)
    if len(times) < 2:
        raise InvalidRequestError(f"{path}: has {len(times)} times; a trace needs 2 or more")
    if times[-1] == times[0]:
        raise InvalidRequestError(f"{path}: all calls are due at the same time, so there is no rate; spread them")
    return [at - times[0] for at in times]


TOLERANCE = 1.1
"""The search ends when the lowest rate that was not held is at most so many times the highest that was."""
LEAST = 0.05
MOST = 100_000.0
"""Rates, in calls a second, beyond which nothing is tried."""

Measure = Callable[[float], Awaitable[LoadPoint]]
"""Measures a rate, in calls a second."""


async def sweep(measure: Measure, rates: Sequence[float]) -> list[LoadPoint]:
    """Measures rates from the lowest, and stops after the first that is not held."""
    points: list[LoadPoint] = []
    for rate in sorted(rates):
        points.append(await measure(rate))
        if not points[-1].held:
            break
    return points


async def search(measure: Measure, start: float) -> list[LoadPoint]:
    """Finds the highest rate that is held: doubles or halves from `start`, then halves the gap on a logarithmic scale.

    Returns all rates that were tried, by rate. The key is the requested rate; a point has the rate that its calls
    really had.
    """
    points: list[LoadPoint] = []

    async def held(rate: float) -> bool:
        points.append(await measure(rate))
        return points[-1].held

    low = high = start
    if await held(start):
        while (high := 2 * low) <= MOST and await held(high):
            low = high
    else:
        while (low := high / 2) >= LEAST and not await held(low):
            high = low
    while low >= LEAST and high <= MOST and high / low > TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if await held(middle) else (low, middle)
    return sorted(points, key=lambda point: point.rate)


GRACE_S = 60.0
"""Seconds after the last arrival in which calls may still end."""


@dataclass(frozen=True)
class Reply:
    """How a call ended, with the fields of `LoadCall`."""

    outcome: Outcome
    status: str = "OK"
    level: str = ""
    retry_after_s: float | None = None


Send = Callable[[int], Awaitable[Reply]]
"""Makes the call of a number, counted from 0. It raises nothing that belongs to the load."""


class _Load:
    """The calls of one load while it runs. It uses the clock of the event loop."""

    def __init__(
        self, send: Send, due: Sequence[float], objective: LatencyObjective | None, began: float | None
    ) -> None:
        self._send = send
        self._due = due
        self._objective = objective
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() if began is None else began
        self._open: dict[int, float] = {}  # number → when it was due; in that order
        self._misses = 0
        self.ended: dict[int, LoadCall] = {}
        self.late_s = 0.0

    async def run(self) -> bool:
        """Sends all calls and waits for them. Returns whether it was stopped, because the objective was missed."""
        running = []
        stopped = False
        for number, at in enumerate(self._due):
            wait = self._began + at - self._clock()
            await asyncio.sleep(max(0.0, wait))
            self.late_s = max(self.late_s, self._clock() - self._began - at)
            if stopped := self._missed():
                break
            self._open[number] = at
            running.append(asyncio.create_task(self._one(number, at)))
        if running and not stopped:
            await asyncio.wait(running, timeout=GRACE_S)
        for task in running:
            task.cancel()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        now = self._clock() - self._began
        for number, at in self._open.items():
            self.ended[number] = LoadCall(at, now - at, "cut" if stopped else "failed", "no answer")
        return stopped

    async def _one(self, number: int, due: float) -> None:
        reply = await self._send(number)
        took = self._clock() - self._began - due
        del self._open[number]
        self.ended[number] = LoadCall(due, took, reply.outcome, reply.status, reply.level, reply.retry_after_s)
        if self._objective and (reply.outcome != "answered" or 1000.0 * took > self._objective.milliseconds):
            self._misses += 1

    def _missed(self) -> bool:
        """Whether so many calls are late already that the objective cannot be kept any more."""
        if self._objective is None:
            return False
        allowed = self._objective.misses(len(self._due))
        before = self._clock() - self._began - self._objective.milliseconds / 1000.0
        oldest = islice(self._open.values(), max(0, allowed + 1 - self._misses))
        return self._misses + sum(at < before for at in oldest) > allowed


@dataclass(frozen=True)
class Ran:
    """The calls that were sent, in the order in which they were due."""

    calls: tuple[LoadCall, ...]
    late_s: float
    """The longest time by which a call was sent too late."""
    stopped: bool
    client_share: float = 0.0
    """Share of a core that the busiest process of the client took."""
    processes: int = 1
    """Of the client."""


async def run_calls(
    send: Send, due: Sequence[float], objective: LatencyObjective | None = None, began: float | None = None
) -> Ran:
    """Makes a call at each time in `due`, and waits until all have ended.

    With an objective the load stops as soon as that cannot be kept any more. began: when the times count from, on the
    clock of the event loop; None: now. Errors that `send` raises are raised.
    """
    load = _Load(send, due, objective, began)
    stopped = await load.run()
    return Ran(tuple(load.ended[number] for number in sorted(load.ended)), load.late_s, stopped)


async def measure_rate(
    send: Send, due: Sequence[float], *, rate: float, seconds: float, objective: LatencyObjective
) -> LoadPoint:
    """Runs one rate. due: times before `seconds`, of `rate` calls a second."""
    ran = await run_calls(send, due, objective)
    return point_of(ran, due=len(due), rate=rate, seconds=seconds, objective=objective)


def point_of(ran: Ran, *, due: int, rate: float, seconds: float, objective: LatencyObjective) -> LoadPoint:
    """The numbers of one rate. due: calls of the whole load, within `seconds`."""
    lasted = max((call.due_s for call in ran.calls), default=0.0) if ran.stopped else seconds
    return load_point(
        ran.calls,
        due=due,
        rate=rate,
        seconds=max(lasted, 1e-9),
        objective=objective,
        late_s=ran.late_s,
        stopped=ran.stopped,
        client_share=ran.client_share,
        processes=ran.processes,
    )
