"""A queue of waiting sentences in which callers take turns."""

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
class _CallerQueue:
    """The sentences of one caller."""

    weight: float
    virtual_time: float
    """At which its first sentence starts."""
    number: int
    """Order among callers of the same time."""
    jobs: Jobs = field(default_factory=OrderedDict)


class FairQueue:
    """Sentences of several callers, in the order of weighted fair queueing.

    Each caller has a clock, which a sentence that starts advances by its cost / the caller's weight. The caller whose
    clock is behind is next. The clock of the queue advances by the cost / the weights of all callers, as if they were
    served at the same time. The clock of a caller that comes anew is set to that of the queue, but not behind all
    others; it keeps its own if that is ahead because it was served just now. Sentences of one caller keep their order.
    Not thread-safe.
    """

    def __init__(self) -> None:
        self._callers: dict[str, _CallerQueue] = {}
        """Callers with sentences here."""
        self._ahead: dict[str, float] = {}
        """Callers without sentences here whose clock is ahead of the queue's."""
        self._most_ahead = 16
        """When `_ahead` has so many callers, those that are not ahead any more are dropped."""
        self._heap: list[tuple[float, int, str]] = []
        self._owners: dict[Future[Any], str] = {}
        self._virtual_time = 0.0
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def callers(self) -> Set[str]:
        """Names of the callers with sentences here."""
        return self._callers.keys()

    def waiting(self, caller: str) -> int:
        """Sentences of one caller."""
        own = self._callers.get(caller)
        return len(own.jobs) if own else 0

    def ahead(self, caller: Caller) -> int:
        """Sentences that start before a new one of this caller, if all cost the same. Sentences that come later may
        start before it too."""
        ahead = self.waiting(caller.name)
        position = ahead + 1
        for name, queue in self._callers.items():
            if name != caller.name:
                ahead += min(len(queue.jobs), round(position * queue.weight / caller.weight))
        return ahead

    def extend(self, jobs: Iterable[Job], caller: Caller) -> None:
        """Adds sentences behind those of their caller."""
        own = self._callers.get(caller.name)
        if own is None:
            last = max((queue.virtual_time for queue in self._callers.values()), default=math.inf)
            virtual_time = max(min(self._virtual_time, last), self._ahead.pop(caller.name, 0.0))
            own = self._callers[caller.name] = _CallerQueue(caller.weight, virtual_time, next(self._numbers))
            heapq.heappush(self._heap, (virtual_time, own.number, caller.name))
        own.weight = caller.weight
        for job in jobs:
            own.jobs[job.future] = job
            self._owners[job.future] = caller.name

    def first(self) -> Job:
        """The sentence that starts next. Raises StopIteration if there is none."""
        front = self._front()
        if front is None:
            raise StopIteration
        return next(iter(front[1].jobs.values()))

    def take(self, starts: Callable[[Job], bool], most: int) -> list[Job]:
        """Removes up to `most` sentences, in the order in which they start, until `starts` is false for the next one.
        Returns them."""
        taken: list[Job] = []
        while most and (front := self._front()):
            name, own = front
            turn = most if len(self._callers) == 1 else 1
            weights = sum(queue.weight for queue in self._callers.values())
            most -= turn
            began = len(taken)
            for job in islice(own.jobs.values(), turn):
                if not starts(job):
                    most = 0
                    break
                taken.append(job)
                work = cost(job)
                self._virtual_time = max(own.virtual_time, self._virtual_time + work / weights)
                own.virtual_time += work / own.weight
            if len(taken) == began:
                break
            for job in taken[began:]:
                del own.jobs[job.future]
                del self._owners[job.future]
            if own.jobs:
                own.number = next(self._numbers)
                heapq.heapreplace(self._heap, (own.virtual_time, own.number, name))
            else:
                heapq.heappop(self._heap)
                self._leave(name, own.virtual_time)
        return taken

    def remove(self, future: Future[Any]) -> bool:
        """Removes the sentence of this future. Returns False if it is not here."""
        name = self._owners.pop(future, None)
        if name is None:
            return False
        own = self._callers[name]
        del own.jobs[future]
        if not own.jobs:
            self._leave(name, own.virtual_time)
        return True

    def clear(self) -> None:
        """Removes every sentence."""
        for future in list(self._owners):
            self.remove(future)

    def __iter__(self) -> Iterator[Job]:
        """All sentences in the order in which they start, if no other comes. The queue must not change meanwhile."""
        heap = [(t.virtual_time, t.number, t.weight, iter(t.jobs.values())) for t in self._callers.values()]
        heapq.heapify(heap)
        numbers = count(max((number for _, number, _, _ in heap), default=0) + 1)
        while heap:
            virtual_time, _, weight, jobs = heap[0]
            job = next(jobs, None)
            if job is None:
                heapq.heappop(heap)
                continue
            heapq.heapreplace(heap, (virtual_time + cost(job) / weight, next(numbers), weight, jobs))
            yield job

    def _front(self) -> tuple[str, _CallerQueue] | None:
        """The caller whose turn it is. Drops what callers that have left the queue left in the heap."""
        while self._heap:
            _, number, name = self._heap[0]
            own = self._callers.get(name)
            if own is not None and own.number == number:
                return name, own
            heapq.heappop(self._heap)
        return None

    def _leave(self, name: str, virtual_time: float) -> None:
        """A caller has no sentence left here."""
        del self._callers[name]
        if not self._callers:
            self._ahead.clear()
            self._heap.clear()
            self._virtual_time = 0.0
        else:
            if len(self._ahead) >= self._most_ahead:
                self._ahead = {caller: at for caller, at in self._ahead.items() if at > self._virtual_time}
                self._most_ahead = 16 + 2 * len(self._ahead)
            self._ahead[name] = virtual_time
