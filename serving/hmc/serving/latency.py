"""The latency of a level, over its latest requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

SIZE = 1000
"""Requests that a window remembers."""


@dataclass(frozen=True)
class LatencySummary:
    """Percentiles of queueing and computation together, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    """Requests that the percentiles are taken over."""


class LatencyWindow:
    """The latest latencies, written and read from any thread."""

    def __init__(self, size: int = SIZE) -> None:
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, float]] = deque(maxlen=size)

    def add(self, seconds: float) -> None:
        """Notes one answered request."""
        with self._lock:
            self._seen.append((time.monotonic(), seconds))

    def summary(self, within_s: float | None = None) -> LatencySummary | None:
        """Percentiles (nearest rank) over the window, or its last `within_s` seconds; None when that is empty."""
        since = time.monotonic() - within_s if within_s is not None else 0.0
        with self._lock:
            values = sorted(seconds for at, seconds in self._seen if at >= since)
        if not values:
            return None

        def at(percent: int) -> float:
            return 1000.0 * values[-(-len(values) * percent // 100) - 1]

        return LatencySummary(at(50), at(95), at(99), len(values))
