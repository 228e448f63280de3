"""The latency of levels: over the latest requests of each, and what a request of some size would take now."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.bundle.order import order
from hmc.serving.requests.results import LatencySummary

WINDOW_REQUESTS = 1000
"""Requests that a window remembers."""
ENOUGH_REQUESTS = 20
"""Requests that a measured 95th percentile needs."""
FEW_REQUESTS = 5
"""Requests that say how slow the machine is."""
FRESH_S = 30.0
"""Seconds for which a request says how fast the machine is now."""
SENTENCE_CHARACTERS = 80
"""Up to this size a request takes about as long as a sentence that a benchmark times."""
GROWTH = 0.75
"""The power of a request's size by which its time grows: sentences of one request are translated together."""
TAIL = 1.5
"""The 95th percentile over the median, where no benchmark recorded both."""


class LatencyWindow:
    """Remembers the latest latencies of a level. Thread-safe."""

    def __init__(self, size: int = WINDOW_REQUESTS, clock: Callable[[], float] = time.monotonic) -> None:
        """size: latencies remembered. clock: returns the time in seconds; it must never go back."""
        self._lock = threading.Lock()
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque(maxlen=size)

    def add(self, seconds: float) -> None:
        """Adds the latency of one answered request."""
        with self._lock:
            self._seen.append((self._clock(), seconds))

    def count(self, within_s: float) -> int:
        """Number of the remembered latencies that were added in the last `within_s` seconds."""
        since = self._clock() - within_s
        with self._lock:
            return sum(1 for _ in takewhile(lambda seen: seen[0] >= since, reversed(self._seen)))

    def summary(self, within_s: float | None = None) -> LatencySummary | None:
        """Percentiles (nearest rank) of the remembered latencies, or None if there are none.

        within_s: only the latencies that were added in the last `within_s` seconds count.
        """
        since = self._clock() - within_s if within_s is not None else float("-inf")
        with self._lock:
            late = takewhile(lambda seen: seen[0] >= since, reversed(self._seen))
            values = sorted(seconds for _, seconds in late)
        if not values:
            return None

        def percentile(percent: int) -> float:
            return 1000.0 * values[-(-len(values) * percent // 100) - 1]

        return LatencySummary(percentile(50), percentile(95), percentile(99), len(values))


@dataclass(frozen=True)
class _Seen:
    """A request that was answered."""

    at: float
    level: str
    characters: int
    seconds: float
    slowness: float
    """Its time over what the bundle lets expect."""


class RequestTimes:
    """The times of requests at the levels of a bundle, and an estimate of what a request would take now at each level.
    Thread-safe.

    All levels run on the same machine, so the levels that serve now show how slow the machine is, also for idle levels.
    Times that are long ago do not count.
    """

    def __init__(self, levels: Sequence[Level], clock: Callable[[], float] = time.monotonic) -> None:
        """levels: of the bundle. clock: returns the time in seconds; it must never go back."""
        self._lock = threading.Lock()
        self._clock = clock
        self._standings = {standing.name: standing for standing in order(levels)}
        self._seen: deque[_Seen] = deque(maxlen=WINDOW_REQUESTS)

    def add(self, level: str, characters: int, seconds: float) -> None:
        """A request of so many characters was answered at a level."""
        slowness = 1000.0 * seconds / (self._standings[level].ms * growth(characters))
        with self._lock:
            self._seen.append(_Seen(self._clock(), level, characters, seconds, slowness))

    def p95_ms(self, characters: int) -> dict[str, float]:
        """Level → the 95th percentile in milliseconds of a request of this size now, if anything is known.

        It is measured over the level's requests of about this size in the last `FRESH_S` seconds. If these are few, it
        is a product of three factors: the time that the bundle records or the cost model says, how slow requests of
        this size are on this machine when it is quiet, and how much slower than that requests of all levels and sizes
        were lately.
        """
        with self._lock:
            seen = list(self._seen)
        since = self._clock() - FRESH_S
        size = _bin(characters)
        fresh = [each for each in seen if each.at >= since]
        by_size = dict[int, list[float]]()
        for each in seen:
            by_size.setdefault(_bin(each.characters), []).append(each.slowness)
        quiet = {size: sorted(all_)[len(all_) // 4] for size, all_ in by_size.items() if len(all_) >= FEW_REQUESTS}
        late = [each.slowness / quiet[of] for each in fresh if (of := _bin(each.characters)) in quiet]
        slowness = quiet.get(size, 1.0) * (median(late) if len(late) >= FEW_REQUESTS else 1.0)
        estimates = {}
        for name, standing in self._standings.items():
            own = sorted(each.seconds for each in fresh if each.level == name and _bin(each.characters) == size)
            recorded = standing.level.latency
            known = recorded is not None and recorded.batch == 1
            if len(own) >= ENOUGH_REQUESTS:
                estimates[name] = 1000.0 * own[-(-len(own) * 95 // 100) - 1]
            elif known or size in quiet:
                tail = recorded.p95_ms / recorded.p50_ms if recorded and standing.timed else TAIL
                estimates[name] = standing.ms * tail * growth(characters) * slowness
        return estimates


def _bin(characters: int) -> int:
    """Requests of one bin have about the same size: within a factor of two, or that of a sentence."""
    return max(SENTENCE_CHARACTERS, characters).bit_length()


def growth(characters: int) -> float:
    """How many times as long as one sentence a request of this size takes, about."""
    return float(max(1.0, characters / SENTENCE_CHARACTERS) ** GROWTH)
