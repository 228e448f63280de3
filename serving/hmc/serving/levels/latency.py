"""The latency of a level over its latest requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from hmc.serving.requests.results import LatencySummary

WINDOW_REQUESTS = 1000
"""Requests that a window remembers."""


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
        """Latencies that were added in the last `within_s` seconds, of those remembered."""
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
