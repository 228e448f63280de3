"""The cache memory of batches: which sentences fit, and which empty batches give theirs back. `TokenBudget` counts
tokens, `PoolBudget` the pools of a level in device form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from hmc.engine.caches.geometry import Chain
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.scheduling.policy import UNLIMITED

IDLE_S = 5.0
"""Seconds that an empty batch keeps its caches for the next sentences of its mode."""
MODES = 6
"""Modes whose pools are held at the same time: greedy and beam search, interactive and not, which the warm-up leaves,
and two of other kinds."""
POOLS_IDLE_S = 300.0
"""Seconds that a mode without sentences keeps its pools. To make them again takes about a second, because its graphs
are captured again."""


class Budget(ABC):
    """The cache memory of one worker's batches."""

    idle_s: ClassVar[float]
    """Seconds after which a mode without sentences gives its memory back."""

    def __init__(self) -> None:
        self._running: dict[Mode, tuple[int, int]] = {}
        """Mode with sentences → rows, and what its largest sentence needs."""
        self._empty_since: dict[Mode, float] = {}  # the first has been empty for longest

    @property
    def any_empty(self) -> bool:
        """Whether a mode without sentences keeps memory."""
        return bool(self._empty_since)

    @property
    def empties(self) -> list[Mode]:
        """Modes without sentences that keep memory, the one that has been empty for longest first."""
        return list(self._empty_since)

    def largest(self, mode: Mode) -> int:
        """What the largest sentence of a batch that runs needs."""
        return self._running[mode][1]

    @abstractmethod
    def need(self, job: Job) -> int:
        """How much room a sentence needs, as a number for `take` and `resize`. A batch needs what that one of its
        sentences needs that needs most."""

    @abstractmethod
    def room(self, mode: Mode, need: int, /) -> tuple[int, int]:
        """How many rows the batch of `mode` can take now, and how many it can have, with sentences of this need; both
        UNLIMITED if sentences only share what all batches have."""

    @abstractmethod
    def take(self, mode: Mode, rows: int, need: int, /) -> bool:
        """Adds a sentence of `rows` rows to the batch of `mode`. Returns False, and adds nothing, if it does not
        fit."""

    @abstractmethod
    def resize(self, mode: Mode, rows: int, need: int, /) -> None:
        """The batch of `mode` now holds so many rows, the largest of this need."""

    @abstractmethod
    def _over(self) -> bool:
        """Whether empty batches have to give their memory back before they are idle for long."""

    def empty(self, mode: Mode, now: float) -> None:
        """The batch of `mode` holds no sentence any more; now: seconds on any clock."""
        self._running.pop(mode, None)
        self._empty_since[mode] = now

    def forget(self, mode: Mode) -> None:
        """The batch of `mode` and its memory are gone."""
        self._running.pop(mode, None)
        self._empty_since.pop(mode, None)

    def evict(self, now: float) -> list[Mode]:
        """Forgets the empty batches whose memory is to be freed now, and returns their modes."""
        evicted = [mode for mode, since in self._empty_since.items() if now - since >= self.idle_s]
        for mode in evicted:
            self.forget(mode)
        while self._empty_since and self._over():
            evicted.append(next(iter(self._empty_since)))
            self.forget(evicted[-1])
        return evicted

    def next_eviction(self, now: float) -> float | None:
        """Seconds until an empty batch has been empty for `idle_s`; None if no batch is empty."""
        return min(self._empty_since.values()) + self.idle_s - now if self._empty_since else None


class TokenBudget(Budget):
    """The cache memory of one worker's batches, counted in tokens: rows × positions of the longest sentence.

    Batches that run need memory for what they hold now. An empty batch keeps the most it ever needed, until it has been
    empty for `IDLE_S`, or until that memory and what runs no longer fit `most` together.
    """

    idle_s = IDLE_S

    def __init__(self, most: int) -> None:
        """most: tokens of all batches together. A sentence that needs more runs alone."""
        super().__init__()
        self.most = most
        self._largest: dict[Mode, int] = {}

    @property
    def running(self) -> int:
        """Tokens of the batches that run."""
        return sum(rows * longest for rows, longest in self._running.values())

    @property
    def kept(self) -> int:
        """Tokens that empty batches keep memory for."""
        return sum(self._largest[mode] for mode in self._empty_since)

    def need(self, job: Job) -> int:
        """Positions that a sentence may need."""
        return job.longest

    def room(self, mode: Mode, longest: int) -> tuple[int, int]:  # noqa: ARG002 - pools have a number
        return UNLIMITED, UNLIMITED

    def take(self, mode: Mode, rows: int, longest: int) -> bool:
        """Adds a sentence of `rows` rows and at most `longest` positions to the batch of `mode`. Returns False, and
        adds nothing, if it does not fit. If nothing runs, any sentence fits."""
        held_rows, held_longest = self._running.get(mode, (0, 0))
        rows += held_rows
        longest = max(longest, held_longest)
        runs_alone = len(self._running) == 1 and held_rows > 0
        others = 0 if runs_alone else self.running - held_rows * held_longest
        if self._running and others + rows * longest > self.most:
            return False
        self.resize(mode, rows, longest)
        return True

    def resize(self, mode: Mode, rows: int, longest: int) -> None:
        """The batch of `mode` now holds so many rows, the longest of so many positions."""
        self._running[mode] = rows, longest
        self._largest[mode] = max(self._largest.get(mode, 0), rows * longest)
        self._empty_since.pop(mode, None)

    def forget(self, mode: Mode) -> None:
        super().forget(mode)
        self._largest.pop(mode, None)

    def _over(self) -> bool:
        return self.running + self.kept > self.most


class PoolBudget(Budget):
    """What modes hold on a device, in place of `TokenBudget`.

    Captured graphs bind a mode's caches to fixed addresses, so a mode holds its pools (`hmc.engine.caches.pools`) from
    its first sentence until it is evicted, whether it has many sentences or none. Pools cost a fixed number of bytes:
    each of the two holds `max_tokens` tokens, rounded up where smaller geometries lie beside larger ones, however
    long and many the sentences are. So there is no account in tokens. The level holds pools of at most `MODES` modes,
    and its memory is at most `MODES` times that of one.

    A sentence of a further mode waits until a mode has no sentence; of those the one that has been empty for longest
    is evicted. As the queue keeps its order, nothing overtakes the waiting sentence, so that moment comes. A mode that
    stays empty for `POOLS_IDLE_S` is evicted, too, and one whose memory another mode needs (`LevelMemory.relief`).
    Within its pools a mode takes as many sentences as the geometry has slots that its longest sentence needs; the
    geometry stays until the mode is empty.
    """

    idle_s = POOLS_IDLE_S

    def __init__(self, max_rows: int, max_tokens: int, positions: int) -> None:
        """See `Chain`."""
        super().__init__()
        self._sizes = max_rows, max_tokens, positions
        self._chains: dict[int, Chain] = {}

    def _chain(self, rows: int) -> Chain:
        """Buckets are the same for rows and trees."""
        if rows not in self._chains:
            self._chains[rows] = Chain(rows, *self._sizes, tree=False)
        return self._chains[rows]

    def need(self, job: Job) -> int:
        """The bucket that a sentence needs."""
        return self._chain(job.mode.rows).bucket_for(len(job.source), job.rules.limit)

    def room(self, mode: Mode, bucket: int) -> tuple[int, int]:
        rows, present = self._running.get(mode, (0, 0))
        most = mode.rows * self._chain(mode.rows).slots(max(bucket, present))
        return most - rows, most

    def take(self, mode: Mode, rows: int, bucket: int) -> bool:
        """Adds a sentence of `rows` rows to the mode. Returns False, and adds nothing, if it does not fit."""
        running_rows, _ = self._running.get(mode, (0, 0))
        known = mode in self._running or mode in self._empty_since
        if self.room(mode, bucket)[0] < rows or not (known or len(self._running) < MODES):
            return False
        self.resize(mode, running_rows + rows, bucket)
        return True

    def resize(self, mode: Mode, rows: int, bucket: int) -> None:
        """The mode now holds so many rows; its geometry does not get smaller."""
        self._running[mode] = rows, max(bucket, self._running.get(mode, (0, 0))[1])
        self._empty_since.pop(mode, None)

    def _over(self) -> bool:
        return len(self._running) + len(self._empty_since) > MODES
