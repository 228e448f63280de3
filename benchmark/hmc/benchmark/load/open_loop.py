"""Calls at times that were fixed beforehand, whether or not earlier calls are answered (an open loop).

A loop that waits for an answer before it sends the next call sends less to a server that stalls, and so measures the
stall once and not for everybody who would have waited. Here the latency of a call runs from when it was due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from hmc.benchmark.load.results import LatencyObjective, LoadCall, LoadPoint, Outcome, load_point

GRACE_S = 60.0
"""Seconds after the last arrival in which calls may still end."""


@dataclass(frozen=True)
class Reply:
    """How a call ended; the fields are those of `LoadCall`."""

    outcome: Outcome
    status: str = "OK"
    level: str = ""
    retry_after_s: float | None = None


Send = Callable[[int], Awaitable[Reply]]
"""Makes the call of a number, counted from 0. It raises nothing that belongs to the load."""


class _Load:
    """The calls of one load while it runs. Its clock is that of the event loop."""

    def __init__(self, send: Send, due: Sequence[float], objective: LatencyObjective | None) -> None:
        self._send, self._due, self._objective = send, due, objective
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._open: dict[int, float] = {}  # number → when it was due; in that order
        self._misses = 0
        self.ended: dict[int, LoadCall] = {}
        self.late_s = 0.0

    async def run(self) -> bool:
        """Sends all calls and waits for them. Returns whether it was stopped, because the objective was missed."""
        running, stopped = [], False
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


async def run_calls(send: Send, due: Sequence[float], objective: LatencyObjective | None = None) -> Ran:
    """Makes a call at each time in `due`, and waits until all have ended.

    With an objective the load stops as soon as that cannot be kept any more. Errors that `send` raises are raised.
    """
    load = _Load(send, due, objective)
    stopped = await load.run()
    return Ran(tuple(load.ended[number] for number in sorted(load.ended)), load.late_s, stopped)


async def measure_rate(
    send: Send, due: Sequence[float], *, rate: float, seconds: float, objective: LatencyObjective
) -> LoadPoint:
    """Runs one rate. due: times before `seconds`, of `rate` calls a second."""
    ran = await run_calls(send, due, objective)
    lasted = max((call.due_s for call in ran.calls), default=0.0) if ran.stopped else seconds
    return load_point(
        ran.calls,
        due=len(due),
        rate=rate,
        seconds=max(lasted, 1e-9),
        objective=objective,
        late_s=ran.late_s,
        stopped=ran.stopped,
    )
