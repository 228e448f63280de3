"""Counters and histograms that are plain numbers, against those of Prometheus's client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from hmc.serving.server.observing.tally import Tallies, TallyCounter, TallyHistogram

BOUNDS = (0.001, 0.5, 1.0, 30.0)
TIMES = (0.0, 0.001, 0.0011, 0.7, 1.0, 30.5)
LABELS = ["model", "level"]


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_they_are_written_as_those_of_the_library() -> None:
    ours = CollectorRegistry()
    library = CollectorRegistry()
    counter = TallyCounter("texts", "Texts.", LABELS)
    histogram = TallyHistogram("seconds", "Seconds.", LABELS, BOUNDS)
    ours.register(Tallies([counter, histogram]))
    theirs = Counter("texts", "Texts.", LABELS, registry=library)
    times = Histogram("seconds", "Seconds.", LABELS, buckets=BOUNDS, registry=library)
    assert lines(ours) == lines(library)
    for level in ("full", 'a "name"'):
        counter.add(("m", level), 3)
        counter.add(("m", level))
        theirs.labels("m", level).inc(4)
        for seconds in TIMES:
            histogram.observe(("m", level), seconds)
            times.labels("m", level).observe(seconds)
    assert lines(ours) == lines(library)
