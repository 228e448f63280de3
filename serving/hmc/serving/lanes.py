"""Who goes first at a level: some sentences are in a hurry, others patient, which does not mean that they starve."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from hmc.serving.jobs import Job, Mode
from hmc.serving.results import Decoded

IN_A_ROW = 3
"""Hurried sentences that pass a patient one: of all that leave, a quarter stays for the patient."""


class Lanes:
    """What waits for rows: two queues that are left as one, the hurried first, but while both wait every fourth that
    leaves is a patient one. Without a lock."""

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

    def add(self, job: Job) -> None:
        """Joins the end of its lane."""
        (self._patient if job.mode.patient else self._hurried)[job.future] = job

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


class TimeShares:
    """Which batches take the next step: where both kinds run, one kind, and then the other for about as long."""

    def __init__(self) -> None:
        self.left = 0.0
        """Seconds that hurried batches may take before patient ones have their turn."""

    def choose(self, active: Sequence[Mode]) -> list[Mode]:
        """Those of `active` whose turn it is."""
        hurried = [mode for mode in active if not mode.patient]
        if not hurried or len(hurried) == len(active):
            self.left = 0.0
            return list(active)
        return hurried if self.left > 0 else [mode for mode in active if mode.patient]

    def count(self, chosen: Sequence[Mode], seconds: float) -> None:
        """They took so long."""
        self.left += seconds if any(mode.patient for mode in chosen) else -seconds
