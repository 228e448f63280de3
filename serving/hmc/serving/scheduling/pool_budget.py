"""The cache memory of a level in device form: which modes hold pools of it, and which sentences fit into them."""

from __future__ import annotations

from hmc.serving.caches.geometry import Chain
from hmc.serving.decoding.job import Job, Mode

MODES = 6
"""Modes whose pools are held at the same time: greedy and beam search, interactive and not, which the warm-up leaves,
and two of other kinds."""
IDLE_S = 300.0
"""Seconds that a mode without sentences keeps its pools. To make them again takes about a second, because its graphs
are captured again."""


class PoolBudget:
    """What modes hold on a device, in place of `TokenBudget`.

    Captured graphs bind a mode's caches to fixed addresses, so a mode holds its pools (`hmc.serving.caches.pools`) from
    its first sentence until it is evicted, whether it has many sentences or none. Pools cost a fixed number of bytes:
    each of the two holds `max_tokens` tokens, rounded up where smaller geometries lie beside larger ones, however
    long and many the sentences are. So there is no account in tokens. The level holds pools of at most `MODES` modes,
    and its memory is at most `MODES` times that of one.

    A sentence of a further mode waits until a mode has no sentence; of those the one that has been empty for longest
    is evicted. As the queue keeps its order, nothing overtakes the waiting sentence, so that moment comes. A mode that
    stays empty for `IDLE_S` is evicted, too, and one whose memory another mode needs (`LevelMemory.relief`).
    Within its pools a mode takes as many sentences as the geometry has slots that its longest sentence needs; the
    geometry stays until the mode is empty.
    """

    def __init__(self, max_rows: int, max_tokens: int, positions: int) -> None:
        """See `Chain`."""
        self._sizes = max_rows, max_tokens, positions
        self._chains: dict[int, Chain] = {}
        self._running: dict[Mode, tuple[int, int]] = {}
        """Mode → rows, and the bucket of its geometry."""
        self._empty_since: dict[Mode, float] = {}  # the first has been empty for longest

    def _chain(self, rows: int) -> Chain:
        """Buckets are the same for rows and trees."""
        if rows not in self._chains:
            self._chains[rows] = Chain(rows, *self._sizes, tree=False)
        return self._chains[rows]

    def need(self, job: Job) -> int:
        """The bucket that a sentence needs."""
        return self._chain(job.mode.rows).bucket_for(len(job.source), job.rules.limit)

    @property
    def any_empty(self) -> bool:
        """Whether a mode with pools has no sentence."""
        return bool(self._empty_since)

    @property
    def empties(self) -> list[Mode]:
        """See `Budget`."""
        return list(self._empty_since)

    def room(self, mode: Mode, bucket: int) -> tuple[int, int]:
        """See `Budget`."""
        held, present = self._running.get(mode, (0, 0))
        most = mode.rows * self._chain(mode.rows).slots(max(bucket, present))
        return most - held, most

    def take(self, mode: Mode, rows: int, bucket: int) -> bool:
        """Adds a sentence of `rows` rows to the mode. Returns False, and adds nothing, if it does not fit."""
        held, _ = self._running.get(mode, (0, 0))
        known = mode in self._running or mode in self._empty_since
        if self.room(mode, bucket)[0] < rows or not (known or len(self._running) < MODES):
            return False
        self.resize(mode, held + rows, bucket)
        return True

    def resize(self, mode: Mode, rows: int, bucket: int) -> None:
        """The mode now holds so many rows; its geometry does not get smaller."""
        self._running[mode] = rows, max(bucket, self._running.get(mode, (0, 0))[1])
        self._empty_since.pop(mode, None)

    def empty(self, mode: Mode, now: float) -> None:
        """The mode has no sentence any more; now: seconds on any clock."""
        self._running.pop(mode, None)
        self._empty_since[mode] = now

    def forget(self, mode: Mode) -> None:
        """The pools of the mode are gone."""
        self._running.pop(mode, None)
        self._empty_since.pop(mode, None)

    def evict(self, now: float) -> list[Mode]:
        """Forgets the modes whose pools are to be given back now, and returns them."""
        evicted = [mode for mode, since in self._empty_since.items() if now - since >= IDLE_S]
        for mode in evicted:
            self.forget(mode)
        while self._empty_since and len(self._running) + len(self._empty_since) > MODES:
            evicted.append(next(iter(self._empty_since)))
            self.forget(evicted[-1])
        return evicted

    def next_eviction(self, now: float) -> float | None:
        """Seconds until a mode has been empty for `IDLE_S`; None if none is empty."""
        return min(self._empty_since.values()) + IDLE_S - now if self._empty_since else None
