"""The rules of scheduling, as arithmetic: which sentences start, which batches run, and which memory they keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hmc.serving.decoding.job import Job, Mode

IDLE_S = 5.0
"""Seconds that an empty batch keeps its caches for the next sentences of its mode."""
UNLIMITED = 1 << 62
"""More rows than any batch has."""


class AdmissionPolicy:
    """When waiting sentences start, at a worker with `max_rows` rows."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows

    def saves_rows(self, free: int, waiting: int, most: int = UNLIMITED) -> bool:
        """Whether free rows stay free for now, because sentences that are encoded together take less time than one by
        one. So it is while waiting sentences need more rows than are free, and less than a quarter of the rows is free.
        most: rows in all, if fewer than the worker has.
        """
        return waiting > free and free < min(most, self._max_rows) // 4

    def holds_back(self, free: int, waiting: int, interactive: int, most: int = UNLIMITED) -> bool:
        """Whether nothing starts now. waiting: rows that all waiting sentences need. interactive: rows that the
        interactive ones of them need; if these rows are free, nothing is held back. most: see `saves_rows`."""
        return self.saves_rows(free, waiting, most) and not 0 < interactive <= free


class Budget(Protocol):
    """The cache memory of one worker's batches."""

    @property
    def any_empty(self) -> bool: ...

    @property
    def empties(self) -> list[Mode]:
        """Modes without sentences that keep memory, the one that has been empty for longest first."""
        ...

    def need(self, job: Job) -> int:
        """How much room a sentence needs, as a number for `take` and `resize`. A batch needs what that one of its
        sentences needs that needs most."""
        ...

    def room(self, mode: Mode, need: int, /) -> tuple[int, int]:
        """How many rows the batch of `mode` can take now, and how many it can have, with sentences of this need; both
        UNLIMITED if sentences only share what all batches have."""
        ...

    def take(self, mode: Mode, rows: int, need: int, /) -> bool: ...

    def resize(self, mode: Mode, rows: int, need: int, /) -> None: ...

    def empty(self, mode: Mode, now: float) -> None: ...

    def forget(self, mode: Mode) -> None: ...

    def evict(self, now: float) -> list[Mode]: ...

    def next_eviction(self, now: float) -> float | None: ...


class TokenBudget:
    """The cache memory of one worker's batches, counted in tokens: rows × positions of the longest sentence.

    Batches that run need memory for what they hold now. An empty batch keeps the most it ever needed, until it has been
    empty for `IDLE_S`, or until that memory and what runs no longer fit `most` together.
    """

    def __init__(self, most: int) -> None:
        """most: tokens of all batches together. A sentence that needs more runs alone."""
        self.most = most
        self._running: dict[Mode, tuple[int, int]] = {}
        self._largest: dict[Mode, int] = {}
        self._empty_since: dict[Mode, float] = {}  # the first has been empty for longest

    @property
    def running(self) -> int:
        """Tokens of the batches that run."""
        return sum(rows * longest for rows, longest in self._running.values())

    @property
    def any_empty(self) -> bool:
        """Whether there is an empty batch."""
        return bool(self._empty_since)

    @property
    def empties(self) -> list[Mode]:
        """See `Budget`."""
        return list(self._empty_since)

    @property
    def kept(self) -> int:
        """Tokens that empty batches keep memory for."""
        return sum(self._largest[mode] for mode in self._empty_since)

    def need(self, job: Job) -> int:
        """Positions that a sentence may need."""
        return job.longest

    def room(self, mode: Mode, longest: int) -> tuple[int, int]:  # noqa: ARG002 - pools have a number
        """See `Budget`."""
        return UNLIMITED, UNLIMITED

    def take(self, mode: Mode, rows: int, longest: int) -> bool:
        """Adds a sentence of `rows` rows and at most `longest` positions to the batch of `mode`. Returns False, and
        adds nothing, if it does not fit. If nothing runs, any sentence fits."""
        held_rows, held_longest = self._running.get(mode, (0, 0))
        grown = held_rows + rows, max(held_longest, longest)
        needed = self.running - held_rows * held_longest + grown[0] * grown[1]
        if self._running and needed > self.most:
            return False
        self.resize(mode, *grown)
        return True

    def resize(self, mode: Mode, rows: int, longest: int) -> None:
        """The batch of `mode` now holds so many rows, the longest of so many positions."""
        self._running[mode] = rows, longest
        self._largest[mode] = max(self._largest.get(mode, 0), rows * longest)
        self._empty_since.pop(mode, None)

    def empty(self, mode: Mode, now: float) -> None:
        """The batch of `mode` holds no sentence any more; now: seconds on any clock."""
        self._running.pop(mode, None)
        self._empty_since[mode] = now

    def forget(self, mode: Mode) -> None:
        """The batch of `mode` and its caches are gone."""
        for held in (self._running, self._largest, self._empty_since):
            held.pop(mode, None)

    def evict(self, now: float) -> list[Mode]:
        """Forgets the empty batches whose caches are to be freed now, and returns their modes."""
        evicted = [mode for mode, since in self._empty_since.items() if now - since >= IDLE_S]
        for mode in evicted:
            self.forget(mode)
        while self._empty_since and self.running + self.kept > self.most:
            evicted.append(next(iter(self._empty_since)))
            self.forget(evicted[-1])
        return evicted

    def next_eviction(self, now: float) -> float | None:
        """Seconds until an empty batch has been empty for `IDLE_S`; None if no batch is empty."""
        return min(self._empty_since.values()) + IDLE_S - now if self._empty_since else None


class TimeSlices:
    """Which batches run the next step. While both interactive and other batches run, the two kinds alternate: one runs,
    and then the other for about as long."""

    def __init__(self) -> None:
        self.left = 0.0
        """Seconds that interactive batches may run before the others do."""

    def choose(self, running: Sequence[Mode]) -> list[Mode]:
        """Those of `running` that run the next step."""
        interactive = [mode for mode in running if mode.interactive]
        if not interactive or len(interactive) == len(running):
            self.left = 0.0
            return list(running)
        return interactive if self.left > 0 else [mode for mode in running if not mode.interactive]

    def count(self, chosen: Sequence[Mode], seconds: float) -> None:
        """The chosen batches ran for so long."""
        self.left += -seconds if all(mode.interactive for mode in chosen) else seconds
