"""Counters and histograms of what happens for every request. They are plain numbers, which Prometheus's client makes
metrics of when it is asked: its own counters take a lock and several checks each time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Labels = tuple[str, ...]


class TallyCounter:
    """A counter. One thread counts; any thread may read it."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._counts: dict[Labels, int] = {}

    def add(self, labels: Labels, amount: int = 1) -> None:
        """Counts. labels: their values."""
        self._counts[labels] = self._counts.get(labels, 0) + amount

    def family(self) -> Metric:
        """The counter as Prometheus's client writes it."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in list(self._counts.items()):
            family.add_metric(labels, count)
        return family


class TallyHistogram:
    """A histogram of seconds. One thread adds; any thread may read it."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        """bounds: upper bounds of its buckets, rising; above them is one more bucket."""
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = bounds
        self._names = [*map(str, bounds), "+Inf"]
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, labels: Labels, seconds: float) -> None:
        """Adds a time. labels: their values."""
        counts = self._counts.get(labels)
        if counts is None:
            self._sums[labels] = 0.0
            counts = self._counts[labels] = [0] * len(self._names)
        counts[bisect_left(self._bounds, seconds)] += 1
        self._sums[labels] += seconds

    def family(self) -> Metric:
        """The histogram as Prometheus's client writes it."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counts in list(self._counts.items()):
            buckets: list[tuple[str, float]] = []
            total = 0
            for name, count in zip(self._names, list(counts), strict=True):
                total += count
                buckets.append((name, float(total)))
            family.add_metric(labels, buckets, self._sums[labels])
        return family


class Tallies(Collector):
    """The counters and histograms of one server."""

    def __init__(self, every: Sequence[TallyCounter | TallyHistogram]) -> None:
        self._every = every

    def describe(self) -> list[Metric]:
        return [each.family() for each in self._every]

    def collect(self) -> Iterator[Metric]:
        for each in self._every:
            yield each.family()
