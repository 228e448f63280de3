"""A discrete-event simulation of a server: callers, the event loop, workers with running batches, and their cores.

What it knows of the machine are the times that `experiments.load.capacity` measures (`Costs`): of a decoder step by its
rows, of encoding by its sentences, and of a call in the event loop, half before and half after its translation. Each
of these holds a core. The event loop and the callers interrupt workers, as an operating system lets threads do that
mostly wait. The event loop holds Python's lock (the GIL) all the time that it works; a worker needs it for a part of
each step, and waits for it without a core. Which sentences start, the server's own `AdmissionPolicy` decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import simpy

from hmc.serving.scheduling.policy import AdmissionPolicy

LOOP, WORK = 0, 1
"""Priorities on a core: lower numbers first, and LOOP interrupts WORK."""


Curve = tuple[tuple[float, float], ...]
"""Points (number, seconds) with rising numbers. Beyond the last one, the line through the last two goes on."""


def at(curve: Curve, number: float) -> float:
    """Seconds at a number, between the points by straight lines."""
    x, y = zip(*curve, strict=True)
    if number > x[-1] and len(x) > 1:
        return float(y[-1] + (number - x[-1]) * (y[-1] - y[-2]) / (x[-1] - x[-2]))
    return float(np.interp(number, x, y))


class Costs(NamedTuple):
    """Seconds of processor time on the machine."""

    step: Curve
    """Of a decoder step, by its rows."""
    encode: Curve
    """Of encoding, by the sentences that are encoded together."""
    call_s: float
    """Of a call in the event loop and in the thread that makes its text."""
    caller_s: float
    """Of a call in the process that makes the calls."""
    python_s: float = 0.0
    """Of a decoder step, the part in which the worker holds Python's lock."""
    waking_s: float = 0.0
    """That a worker needs in addition when it has had nothing to do: the processor's caches hold other things then."""


class Machine(NamedTuple):
    """What serves."""

    cores: int
    workers: int
    max_rows: int
    """Of each worker."""
    queue_size: int


@dataclass
class Job:
    """A call with one sentence. Times are seconds since the start."""

    due: float
    steps: int
    """Decoder steps that its search takes."""
    left: int = 0
    done: simpy.Event | None = None
    ended: float | None = None
    """None: refused."""


@dataclass
class Simulation:
    """Runs calls through a machine. Every number is that of one beam size."""

    costs: Costs
    machine: Machine
    beam: int
    env: simpy.Environment = field(default_factory=simpy.Environment)

    def __post_init__(self) -> None:
        self._cores = simpy.PreemptiveResource(self.env, self.machine.cores)
        self._policy = AdmissionPolicy(self.machine.max_rows)
        self.worked_s = 0.0
        """Seconds in which workers have encoded and stepped so far, with what they waited for meanwhile."""
        self._waiting: deque[Job] = deque()
        self._idle: list[simpy.Event] = []
        self._loop = simpy.Resource(self.env, 1)
        self._lock = simpy.Resource(self.env, 1)

    def run(self, due: Sequence[float], steps: Sequence[int]) -> list[Job]:
        """Simulates calls. due: seconds at which each comes, rising. steps: of its search. Returns them when all have
        ended."""
        jobs = [Job(at, number) for at, number in zip(due, steps, strict=True)]
        for _ in range(self.machine.workers):
            self.env.process(self._worker())
        calls = [self.env.process(self._call(job)) for job in jobs]
        self.env.run(until=self.env.all_of(calls))
        return jobs

    def _busy(self, seconds: float, priority: int) -> Generator[Any, Any, None]:
        # A process of its own: when it has ended, an interruption of the same moment has nobody to reach.
        yield self.env.process(self._hold_core(seconds, priority))

    def _hold_core(self, seconds: float, priority: int) -> Generator[Any, Any, None]:
        left = seconds
        while left > 0:
            began = None
            with self._cores.request(priority, preempt=priority == LOOP) as core:
                try:
                    yield core
                    began = self.env.now
                    yield self.env.timeout(left)
                    return
                except simpy.Interrupt:  # the event loop or a caller takes the core, perhaps as soon as it is given
                    left -= 0.0 if began is None else self.env.now - began

    def _in_loop(self, seconds: float) -> Generator[Any, Any, None]:
        with self._loop.request() as turn:
            yield turn
            yield from self._locked(seconds, LOOP)

    def _locked(self, seconds: float, priority: int) -> Generator[Any, Any, None]:
        with self._lock.request() as lock:
            yield lock
            yield from self._busy(seconds, priority)

    def _call(self, job: Job) -> Generator[Any, Any, None]:
        yield self.env.timeout(job.due)
        yield from self._busy(self.costs.caller_s / 2, LOOP)
        yield from self._in_loop(self.costs.call_s / 2)
        if len(self._waiting) >= self.machine.queue_size:
            return
        job.left, job.done = job.steps, self.env.event()
        self._waiting.append(job)
        if self._idle:
            self._idle.pop().succeed()
        yield job.done
        yield from self._in_loop(self.costs.call_s / 2)
        yield from self._busy(self.costs.caller_s / 2, LOOP)
        job.ended = self.env.now

    def _starting(self, running: int) -> list[Job]:
        free = self.machine.max_rows - running * self.beam
        waiting = len(self._waiting) * self.beam
        if self._policy.holds_back(free, waiting, waiting):
            return []
        share = -(-len(self._waiting) // (1 + len(self._idle)))
        return [self._waiting.popleft() for _ in range(min(free // self.beam, share))]

    def _worker(self) -> Generator[Any, Any, None]:
        running: list[Job] = []
        while True:
            if not running and not self._waiting:
                woken = self.env.event()
                self._idle.append(woken)
                yield woken
                began = self.env.now
                yield from self._busy(self.costs.waking_s, WORK)
                self.worked_s += self.env.now - began
            began = self.env.now
            if started := self._starting(len(running)):
                yield from self._busy(at(self.costs.encode, len(started)), WORK)
                running += started
            if not running:
                continue
            step_s = at(self.costs.step, self.beam * len(running))
            yield from self._busy(max(0.0, step_s - self.costs.python_s), WORK)
            yield from self._locked(min(step_s, self.costs.python_s), WORK)
            self.worked_s += self.env.now - began
            for job in running:
                job.left -= 1
            for job in running:
                if job.left == 0 and job.done is not None:
                    job.done.succeed()
            running = [job for job in running if job.left]


def latencies(jobs: Sequence[Job]) -> np.ndarray:
    """Seconds from the time that a call was due to its end, of those that were answered."""
    return np.array([job.ended - job.due for job in jobs if job.ended is not None])


def answered_per_second(jobs: Sequence[Job], seconds: float) -> float:
    """Answers a second of a load that lasted so long, until the last answer."""
    ends = [job.ended for job in jobs if job.ended is not None]
    return len(ends) / max(seconds, *ends)
