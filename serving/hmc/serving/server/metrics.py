"""Prometheus metrics. Each server has a registry of its own, so several can live in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from wsgiref.simple_server import WSGIServer

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hmc.serving.answers import Answer
from hmc.serving.loaded import Lease
from hmc.serving.server.settings import check_port
from hmc.serving.status import code_of

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms, in seconds."""


class Request:
    """What is noted about one request: a call of Translate, or one text of a stream."""

    level = ""
    bundle_version = ""
    answer: Answer | None = None

    def at(self, lease: Lease) -> None:
        """Notes the level that serves it."""
        self.level, self.bundle_version = lease.level.name, lease.bundle_version


class Metrics:
    """Requests by level and status code, their times and tokens, and what waits at each level."""

    def __init__(self, pending: Callable[[], dict[str, int]]) -> None:
        """`pending` gives the texts queued or running, by level."""
        self.registry = CollectorRegistry()
        self._calls = Counter(
            "hmc_calls", "gRPC calls ended, by method and status code.", ["method", "code"], registry=self.registry
        )
        self._requests = Counter(
            "hmc_requests",
            "Requests ended (a Translate call, or a text of a stream), by level and status code.",
            ["level", "code"],
            registry=self.registry,
        )
        self._texts = Counter("hmc_texts", "Texts translated, by level.", ["level"], registry=self.registry)
        self._tokens = Counter(
            "hmc_tokens",
            "Tokens read (source) and written (target), by level.",
            ["level", "side"],
            registry=self.registry,
        )
        self._queue = self._histogram("hmc_queue_seconds", "Seconds from arrival to the first computation, by level.")
        self._compute = self._histogram("hmc_compute_seconds", "Seconds of computation for a request, by level.")
        self.registry.register(_Pending(pending))

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, ["level"], buckets=BUCKETS_S, registry=self.registry)

    def call(self, method: str, code: grpc.StatusCode) -> None:
        """Counts a call that ended."""
        self._calls.labels(method, code.name).inc()

    @contextmanager
    def request(self) -> Iterator[Request]:
        """Counts what happens inside as one request, under the error it ends with."""
        request = Request()
        try:
            yield request
        except BaseException as error:
            self._requests.labels(request.level, code_of(error).name).inc()
            raise
        self._requests.labels(request.level, grpc.StatusCode.OK.name).inc()
        if request.answer is not None:
            self._observe(request.answer)

    def _observe(self, answer: Answer) -> None:
        self._texts.labels(answer.level).inc(len(answer))
        self._tokens.labels(answer.level, "source").inc(sum(t.source_tokens for t in answer))
        self._tokens.labels(answer.level, "target").inc(sum(t.target_tokens for t in answer))
        if all(t.blank for t in answer):
            return
        self._queue.labels(answer.level).observe(answer.queue_ms / 1000.0)
        self._compute.labels(answer.level).observe(answer.compute_ms / 1000.0)

    def serve(self, host: str, port: int) -> tuple[WSGIServer, int]:
        """Serves the metrics over HTTP from a thread; returns the server and its port. Raises as `check_port`."""
        check_port(host, port, "--metrics-port")
        server, _ = start_http_server(port, host, self.registry)
        return server, int(server.server_port)


class _Pending(Collector):
    """Asks for the queue depths when Prometheus does."""

    def __init__(self, pending: Callable[[], dict[str, int]]) -> None:
        self._pending = pending

    def describe(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("hmc_pending_texts", "Texts queued or running, by level.", labels=["level"])]

    def collect(self) -> list[GaugeMetricFamily]:
        (family,) = self.describe()
        for level, texts in self._pending().items():
            family.add_metric([level], texts)
        return [family]
