"""Sentences that wait for rows at a level: in a hurry, or patient, so that others may pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future

from hmc.serving.jobs import Job
from hmc.serving.results import Decoded

IN_A_ROW = 3
"""Hurried sentences that pass a patient one: of all that leave, a quarter stays for the patient."""


class Lanes:
    """Two queues that are left as one: the hurried first, but while both wait every fourth is a patient one. Without
    a lock."""

    def __init__(self) -> None:
        self._hurried: OrderedDict[Future[Decoded], Job] = OrderedDict()
        self._patient: OrderedDict[Future[Decoded], Job] = OrderedDict()
        self._in_a_row = 0

    def __len__(self) -> int:
        return len(self._hurried) + len(self._patient)

    def __iter__(self) -> Iterator[Job]:
        yield from self._hurried.values()
        yield from self._patient.values()

    @property
    def hurried(self) -> int:
        """Sentences that are in a hurry."""
        return len(self._hurried)

    def add(self, job: Job, *, patient: bool) -> None:
        """Joins the end of its lane."""
        (self._patient if patient else self._hurried)[job.future] = job

    def first(self) -> Job:
        """The next to leave. Raises StopIteration where nothing waits."""
        return next(iter(self._next.values()))

    def take(self) -> Job:
        """Removes the next to leave. Raises KeyError where nothing waits."""
        lane = self._next
        self._in_a_row = self._in_a_row + 1 if lane is self._hurried and self._patient else 0
        return lane.popitem(last=False)[1]

    def remove(self, future: Future[Decoded]) -> bool:
        """Whether this sentence waited; it does no more."""
        return any(lane.pop(future, None) is not None for lane in (self._hurried, self._patient))

    @property
    def _next(self) -> OrderedDict[Future[Decoded], Job]:
        waited_enough = self._patient and self._in_a_row >= IN_A_ROW
        return self._patient if waited_enough or not self._hurried else self._hurried
