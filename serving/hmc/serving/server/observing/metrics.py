"""Prometheus metrics. Each server has a registry of its own, so one process can run several servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, make_wsgi_app, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hmc.serving.levels.slots import Lease
from hmc.serving.levels.status import HostStatus
from hmc.serving.requests.answers import Answer
from hmc.serving.server.access.listening import check_port
from hmc.serving.wire.status import code_of

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms, in seconds."""


class RequestRecord:
    """What becomes known about one request (a call, or one text of a stream) while it is served."""

    model = ""
    """Name of the model that serves it; empty until one is chosen."""
    level = ""
    """Name of the level that serves it; empty until one is chosen."""
    bundle_version = ""
    answer: Answer | None = None
    """None until it is answered."""

    def served_by(self, lease: Lease) -> None:
        """Records the level that serves the request."""
        self.model, self.level, self.bundle_version = lease.model, lease.level.name, lease.bundle_version


class Metrics:
    """Counts requests by model, level and status code, their times and tokens, and the texts that wait there."""

    def __init__(self, statuses: Callable[[], Sequence[HostStatus]]) -> None:
        """statuses: returns the status of each model."""
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "hmc_calls", "gRPC calls ended, by method and status code.", ["method", "code"], registry=self.registry
        )
        self._requests = Counter(
            "hmc_requests",
            "Requests ended (a call, or a text of a stream), by model, level and status code.",
            ["model", "level", "code"],
            registry=self.registry,
        )
        self._texts = Counter("hmc_texts", "Texts translated, by level.", ["model", "level"], registry=self.registry)
        self._tokens = Counter(
            "hmc_tokens",
            "Tokens read (source) and written (target), by level.",
            ["model", "level", "side"],
            registry=self.registry,
        )
        self._queue = self._histogram("hmc_queue_seconds", "Seconds from arrival to the first computation, by level.")
        self._compute = self._histogram("hmc_compute_seconds", "Seconds of computation for a request, by level.")
        self.registry.register(_Status(statuses))

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, ["model", "level"], buckets=BUCKETS_S, registry=self.registry)

    def call(self, method: str, code: grpc.StatusCode) -> None:
        """Counts a gRPC call that ended. method: its full name, such as `/hmc.v1.TranslationService/Translate`."""
        self._calls.labels(method, code.name).inc()

    @contextmanager
    def record(self) -> Iterator[RequestRecord]:
        """Counts the `with` block as one request, under the status of the error that leaves it."""
        record = RequestRecord()
        try:
            yield record
        except BaseException as error:
            self._requests.labels(record.model, record.level, code_of(error).name).inc()
            raise
        self._requests.labels(record.model, record.level, grpc.StatusCode.OK.name).inc()
        if record.answer is not None:
            self._observe(record.model, record.answer)

    def _observe(self, model: str, answer: Answer) -> None:
        self._texts.labels(model, answer.level).inc(len(answer))
        self._tokens.labels(model, answer.level, "source").inc(sum(t.source_tokens for t in answer))
        self._tokens.labels(model, answer.level, "target").inc(sum(t.target_tokens for t in answer))
        if all(t.blank for t in answer):
            return
        self._queue.labels(model, answer.level).observe(answer.queue_ms / 1000.0)
        self._compute.labels(model, answer.level).observe(answer.compute_ms / 1000.0)

    def serve(
        self, host: str, port: int, guard: Callable[[WSGIApplication], WSGIApplication] | None = None
    ) -> tuple[WSGIServer, int]:
        """Serves the metrics over HTTP from a thread. Returns the HTTP server and its port. Raises as `check_port`.

        guard: wraps the application, and refuses callers who may not read the metrics.
        """
        check_port(host, port, "--metrics-port")
        server, _ = start_http_server(port, host, CollectorRegistry() if guard else self.registry)
        if guard is not None:  # until here it had no metrics
            server.set_app(guard(make_wsgi_app(self.registry)))
        return server, int(server.server_port)


class _Status(Collector):
    """Reads the status of the levels whenever Prometheus collects its metrics."""

    def __init__(self, statuses: Callable[[], Sequence[HostStatus]]) -> None:
        self._statuses = statuses

    def describe(self) -> list[GaugeMetricFamily]:
        return list(_families().values())

    def collect(self) -> list[GaugeMetricFamily]:
        statuses, families = self._statuses(), _families()
        for status, level in ((s, level) for s in statuses for level in s.levels if level.loaded):
            labels = [status.model, level.level.name]
            families["pending_texts"].add_metric(labels, level.pending)
            for where, split in (("memory_bytes", level.memory), ("device_memory_bytes", level.device_memory)):
                if split is not None:
                    families[where].add_metric([*labels, "own"], split.own)
                    families[where].add_metric([*labels, "shared"], split.shared)
        for use in {use.device: use for status in statuses for use in status.devices}.values():
            families["device_reserved_bytes"].add_metric([use.device], use.reserved)
            families["device_free_bytes"].add_metric([use.device], use.free)
            if use.budget:
                families["device_budget_bytes"].add_metric([use.device], use.budget)
        return list(families.values())


def _families() -> dict[str, GaugeMetricFamily]:
    """Gauges of the status, empty, by their names without `hmc_`."""
    described = {
        "pending_texts": ("Texts queued or running, by level.", ["model", "level"]),
        "memory_bytes": (
            "Weights in this machine's memory, by level; shared ones are there once.",
            ["model", "level", "part"],
        ),
        "device_memory_bytes": ("Weights and caches on CUDA devices, by level.", ["model", "level", "part"]),
        "device_reserved_bytes": ("Weights and caches of all levels, by CUDA device.", ["device"]),
        "device_budget_bytes": ("The most that may be reserved, by CUDA device.", ["device"]),
        "device_free_bytes": ("Memory that no process uses, by CUDA device.", ["device"]),
    }
    return {name: GaugeMetricFamily(f"hmc_{name}", text, labels=labels) for name, (text, labels) in described.items()}
