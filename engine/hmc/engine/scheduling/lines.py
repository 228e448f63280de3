"""A line of waiting sentences in which callers take turns."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from hmc.engine.decoding.job import Job
from hmc.engine.requests.caller import Caller

Jobs = OrderedDict[Future[Any], Job]


def cost(job: Job) -> int:
    """The work that a sentence is, as turns count it: rows × source tokens."""
    return job.mode.rows * len(job.source)


@dataclass(eq=False)
class _Turns:
    """A caller with sentences in the line."""

    weight: float
    begins: float
    """Virtual time at which its first sentence starts."""
    number: int
    """Order among callers of the same time."""
    jobs: Jobs = field(default_factory=OrderedDict)


class FairLine:
    """Sentences of several callers, in the order of weighted fair queueing.

    Each caller has a clock, which a sentence that starts advances by its cost / the caller's weight. The caller whose
    clock is behind is next. The clock of the line advances by the cost / the weights of all callers, as if they were
    served at the same time. The clock of a caller that comes anew is set to that of the line, but not behind all
    others; it keeps its own if that is ahead because it was served just now. Sentences of one caller keep their order.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._callers: dict[str, _Turns] = {}
        """Callers with sentences in the line."""
        self._ahead: dict[str, float] = {}
        """Callers without sentences here whose clock is ahead of the line's."""
        self._most_ahead = 16
        """When `_ahead` has so many callers, those that are not ahead any more are dropped."""
        self._heap: list[tuple[float, int, str]] = []
        self._owners: dict[Future[Any], str] = {}
        self._now = 0.0
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def callers(self) -> Set[str]:
        """Names of the callers with sentences in the line."""
        return self._callers.keys()

    def of(self, caller: str) -> int:
        """Sentences of one caller."""
        turns = self._callers.get(caller)
        return len(turns.jobs) if turns else 0

    def ahead(self, caller: Caller) -> int:
        """Sentences that start before a new one of this caller, if all cost the same. Sentences that come later may
        start before it too."""
        own = self.of(caller.name) + 1
        others = (turns for name, turns in self._callers.items() if name != caller.name)
        return own - 1 + sum(min(len(turns.jobs), round(own * turns.weight / caller.weight)) for turns in others)

    def extend(self, jobs: Iterable[Job], caller: Caller) -> None:
        """Adds sentences behind those of their caller."""
        turns = self._callers.get(caller.name)
        if turns is None:
            last = max((each.begins for each in self._callers.values()), default=math.inf)
            begins = max(min(self._now, last), self._ahead.pop(caller.name, 0.0))
            turns = self._callers[caller.name] = _Turns(caller.weight, begins, next(self._numbers))
            heapq.heappush(self._heap, (begins, turns.number, caller.name))
        turns.weight = caller.weight
        for job in jobs:
            turns.jobs[job.future] = job
            self._owners[job.future] = caller.name

    def first(self) -> Job:
        """The sentence that starts next. Raises StopIteration if there is none."""
        turns = self._front()
        if turns is None:
            raise StopIteration
        return next(iter(turns[1].jobs.values()))

    def take(self, starts: Callable[[Job], bool], most: int) -> list[Job]:
        """Removes up to `most` sentences, in the order in which they start, until `starts` is false for the next one.
        Returns them."""
        taken: list[Job] = []
        while most and (front := self._front()):
            name, turns = front
            turn = most if len(self._callers) == 1 else 1
            weights = sum(each.weight for each in self._callers.values())
            most -= turn
            began = len(taken)
            for job in islice(turns.jobs.values(), turn):
                if not starts(job):
                    most = 0
                    break
                taken.append(job)
                work = cost(job)
                self._now = max(turns.begins, self._now + work / weights)
                turns.begins += work / turns.weight
            if len(taken) == began:
                break
            for job in taken[began:]:
                del turns.jobs[job.future]
                del self._owners[job.future]
            if turns.jobs:
                turns.number = next(self._numbers)
                heapq.heapreplace(self._heap, (turns.begins, turns.number, name))
            else:
                heapq.heappop(self._heap)
                self._leave(name, turns.begins)
        return taken

    def remove(self, future: Future[Any]) -> bool:
        """Removes the sentence of this future. Returns False if it is not here."""
        name = self._owners.pop(future, None)
        if name is None:
            return False
        turns = self._callers[name]
        del turns.jobs[future]
        if not turns.jobs:
            self._leave(name, turns.begins)
        return True

    def clear(self) -> None:
        """Removes every sentence."""
        for future in list(self._owners):
            self.remove(future)

    def __iter__(self) -> Iterator[Job]:
        """All sentences in the order in which they start, if no other comes. The line must not change meanwhile."""
        heap = [(t.begins, t.number, t.weight, iter(t.jobs.values())) for t in self._callers.values()]
        heapq.heapify(heap)
        numbers = count(max((number for _, number, _, _ in heap), default=0) + 1)
        while heap:
            begins, _, weight, jobs = heap[0]
            job = next(jobs, None)
            if job is None:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (begins + cost(job) / weight, next(numbers), weight, jobs))
            yield job

    def _front(self) -> tuple[str, _Turns] | None:
        """The caller whose turn it is. Drops what callers that have left the line left in the heap."""
        while self._heap:
            _, number, name = self._heap[0]
            turns = self._callers.get(name)
            if turns is not None and turns.number == number:
                return name, turns
            heapq.heappop(self._heap)
        return None

    def _leave(self, name: str, begins: float) -> None:
        """A caller has no sentence left here."""
        del self._callers[name]
        if not self._callers:
            self._ahead.clear()
            self._heap.clear()
            self._now = 0.0
        else:
            if len(self._ahead) >= self._most_ahead:
                self._ahead = {each: at for each, at in self._ahead.items() if at > self._now}
                self._most_ahead = 16 + 2 * len(self._ahead)
            self._ahead[name] = begins
