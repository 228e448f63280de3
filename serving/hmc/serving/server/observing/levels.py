"""Metrics of levels and devices, which are read when Prometheus asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hmc.serving.levels.status import HostStatus, LevelStatus
from hmc.serving.requests.work import ROW_BOUNDS

LEVEL = ["model", "level"]
GAUGES: dict[str, tuple[str, list[str]]] = {
    "bundle_info": ("1 for the bundle that each model serves.", ["model", "bundle_version"]),
    "level_loaded": ("1 for a level that is loaded, 0 for one that is not.", LEVEL),
    "level_failed": ("1 for a loaded level that stopped unexpectedly and has answered nothing since, else 0.", LEVEL),
    "pending_texts": ("Texts queued or running, by level.", LEVEL),
    "queued_sentences": ("Sentences in the queue, by level.", LEVEL),
    "queue_size_sentences": ("Most sentences in the queue, by level.", LEVEL),
    "workers": ("Workers, each of which runs one batch at a time, by level.", LEVEL),
    "max_rows": ("Most hypotheses that are decoded together, by level.", LEVEL),
    "memory_bytes": ("Weights in this machine's memory, by level; shared ones are there once.", [*LEVEL, "part"]),
    "device_memory_bytes": ("Weights and caches on CUDA devices, by level.", [*LEVEL, "part"]),
    "device_reserved_bytes": ("Weights and caches of all levels, by CUDA device.", ["device"]),
    "device_budget_bytes": ("The most that may be reserved, by CUDA device.", ["device"]),
    "device_free_bytes": ("Memory that no process uses, by CUDA device.", ["device"]),
}
"""Name without `hmc_` → its meaning and labels."""
COUNTERS: dict[str, tuple[str, list[str]]] = {
    "sentences": ("Sentences that have left their batch, by level and outcome.", [*LEVEL, "outcome"]),
    "encoder_seconds": ("Seconds in which workers encoded, by level.", LEVEL),
    "decoder_seconds": ("Seconds in which workers ran the decoder, by level.", LEVEL),
    "decoder_row_seconds": ("Rows × seconds in which workers ran the decoder, by level.", LEVEL),
}
"""As `GAUGES`. They begin at 0 when a level is loaded."""
BATCH_ROWS = "batch_rows"
BATCH_ROWS_TEXT = "Rows of a batch at each turn of a worker, by level."


class LevelMetrics(Collector):
    """Reads the status of the levels whenever Prometheus collects its metrics."""

    def __init__(self, statuses: Callable[[], Sequence[HostStatus]]) -> None:
        """statuses: returns the status of each model."""
        self._statuses = statuses

    def describe(self) -> list[Metric]:
        return list(_families().values())

    def collect(self) -> list[Metric]:
        statuses, families = self._statuses(), _families()

        def add(name: str, labels: Sequence[str], value: float) -> None:
            families[name].add_metric(labels, value)  # type: ignore[attr-defined]  # of gauges and counters

        for status in statuses:
            add("bundle_info", [status.model, status.manifest.version], 1)
            for level in status.levels:
                labels = [status.model, level.name]
                add("level_loaded", labels, float(level.loaded))
                if level.loaded:
                    for name, more, value in _values(level):
                        add(name, [*labels, *more], value)
                    self._add_rows(families[BATCH_ROWS], labels, level)
        for use in {use.device: use for status in statuses for use in status.devices}.values():
            add("device_reserved_bytes", [use.device], use.reserved)
            add("device_free_bytes", [use.device], use.free)
            if use.budget:
                add("device_budget_bytes", [use.device], use.budget)
        return list(families.values())

    @staticmethod
    def _add_rows(family: Metric, labels: list[str], level: LevelStatus) -> None:
        assert isinstance(family, HistogramMetricFamily)
        buckets, count = [], 0
        for bound, turns in zip((*map(str, map(float, ROW_BOUNDS)), "+Inf"), level.work.total.turns, strict=True):
            count += turns
            buckets.append((bound, float(count)))
        family.add_metric(labels, buckets, float(level.work.total.rows))


def _values(level: LevelStatus) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """(name, further labels, value) of a loaded level."""
    work, total = level.work, level.work.total
    yield "level_failed", (), float(bool(level.failure))
    yield "pending_texts", (), level.pending
    yield "queued_sentences", (), work.waiting
    yield "queue_size_sentences", (), work.queue_size
    yield "workers", (), work.workers
    yield "max_rows", (), work.max_rows
    yield "encoder_seconds", (), total.encoder_seconds
    yield "decoder_seconds", (), total.decoder_seconds
    yield "decoder_row_seconds", (), total.row_seconds
    for outcome, sentences in (("done", total.done), ("cancelled", total.cancelled), ("failed", total.failed)):
        yield "sentences", (outcome,), sentences
    for name, split in (("memory_bytes", level.memory), ("device_memory_bytes", level.device_memory)):
        if split is not None:
            yield name, ("own",), split.own
            yield name, ("shared",), split.shared


def _families() -> dict[str, Metric]:
    """The metrics, empty, by their names without `hmc_`."""
    families: dict[str, Metric] = {
        name: GaugeMetricFamily(f"hmc_{name}", text, labels=labels) for name, (text, labels) in GAUGES.items()
    }
    for name, (text, labels) in COUNTERS.items():
        families[name] = CounterMetricFamily(f"hmc_{name}", text, labels=labels)
    families[BATCH_ROWS] = HistogramMetricFamily(f"hmc_{BATCH_ROWS}", BATCH_ROWS_TEXT, labels=LEVEL)
    return families
