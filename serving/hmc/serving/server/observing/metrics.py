"""Prometheus metrics. Each server has a registry of its own, so one process can run several servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)

from hmc.artifact.distribution import VERSION
from hmc.serving.levels.slots import Lease
from hmc.serving.levels.status import HostStatus
from hmc.serving.requests.answers import Answer
from hmc.serving.server.access.listening import check_port
from hmc.serving.server.observing.calls import current_call
from hmc.serving.server.observing.levels import LevelMetrics
from hmc.serving.server.observing.refusals import Refusals
from hmc.serving.wire.status import code_of

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms, in seconds."""
LEVEL = ["model", "level"]


class RequestRecord:
    """What becomes known about one request (a call, or one text of a stream) while it is served."""

    model = ""
    """Name of the model that serves it; empty until one is chosen."""
    level = ""
    """Name of the level that serves it; empty until one is chosen."""
    chosen_by = ""
    """How the request chose its level, see `Selector.chosen_by`."""
    bundle_version = ""
    answer: Answer | None = None
    """None until it is answered."""
    first_s: float | None = None
    """Seconds until the first piece of its translation, of a call that answers in pieces. None before it."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.call = current_call.get()

    def served_by(self, lease: Lease) -> None:
        """Records the level that serves the request."""
        self.model, self.level, self.bundle_version = lease.model, lease.level.name, lease.bundle_version
        self.chosen_by = lease.chosen_by

    def piece(self) -> None:
        """Records that a piece of the translation is there. Only the first one counts."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._began


class Metrics:
    """Counts requests by model, level and outcome, their times and tokens, and reads what levels do."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[HostStatus]],
        ready: Callable[[], bool] = lambda: True,
        draining: Callable[[], bool] = lambda: False,
    ) -> None:
        """statuses: returns the status of each model. ready, draining: return whether the server serves, and whether
        it is shutting down."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._gauge("hmc_build_info", "1, with the version of the server.", ["version"]).labels(VERSION).set(1)
        self._gauge("hmc_ready", "1 while the server serves, else 0.").set_function(lambda: float(ready()))
        self._gauge("hmc_draining", "1 while the server shuts down, else 0.").set_function(lambda: float(draining()))
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._calls = self._counter("hmc_calls", "Calls ended, by method and status code.", ["method", "code"])
        self._requests = self._counter(
            "hmc_requests",
            "Requests ended (a call, or a text of a stream), by model, level and status code.",
            [*LEVEL, "code"],
        )
        self._chosen = self._counter(
            "hmc_level_choices", "Requests by level, and by how they chose it.", [*LEVEL, "chosen_by"]
        )
        self._texts = self._counter("hmc_texts", "Texts translated, by level.", LEVEL)
        self._tokens = self._counter(
            "hmc_tokens", "Tokens read (source) and written (target), by level.", [*LEVEL, "side"]
        )
        self._reloads = self._counter("hmc_reloads", "Reloads of a bundle, by model and outcome.", ["model", "outcome"])
        self.upkeep = self._counter(
            "hmc_background_errors", "Errors of work in the background, which is tried again, by work.", ["work"]
        )
        self._queue = self._histogram("hmc_queue_seconds", "Seconds from arrival to the first computation, by level.")
        self._compute = self._histogram("hmc_compute_seconds", "Seconds of computation for a request, by level.")
        self._first = self._histogram(
            "hmc_first_token_seconds", "Seconds until the first piece of calls that answer in pieces, by level."
        )
        self._refusals = Refusals(self.registry, draining)
        self.registry.register(LevelMetrics(statuses))

    def expect(self, statuses: Sequence[HostStatus]) -> None:
        """Begins counters at 0 that alerts watch. Otherwise Prometheus could not see their first step."""
        for status in statuses:
            for outcome in ("done", "failed"):
                self._reloads.labels(status.model, outcome)
            for level in status.levels:
                self._refusals.expect(status.model, level.name)

    def _counter(self, name: str, help_text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, LEVEL, buckets=BUCKETS_S, registry=self.registry)

    def call(self, method: str, code: grpc.StatusCode, error: BaseException | None = None) -> None:
        """Counts a call that ended. method: its full name, such as `/hmc.v1.TranslationService/Translate`. error: what
        ended it, if it failed."""
        self._calls.labels(method, code.name).inc()
        if error is not None:
            self._refusals.count(error)

    @contextmanager
    def record(self) -> Iterator[RequestRecord]:
        """Counts the `with` block as one request, under the status of the error that leaves it."""
        record = RequestRecord()
        try:
            yield record
        except BaseException as error:
            self.ended(record, error)
            raise
        self.ended(record)

    def ended(self, record: RequestRecord, error: BaseException | None = None) -> None:
        """Counts a request that has ended. error: what ended it, if it failed."""
        code = grpc.StatusCode.OK if error is None else code_of(error)
        if error is not None:
            self._refusals.count(error, record.model, record.level)
        model, level = record.model, record.level
        self._child(self._requests, model, level, code.name).inc()
        if record.chosen_by:
            self._child(self._chosen, model, level, record.chosen_by).inc()
        if record.first_s is not None:
            self._child(self._first, model, level).observe(record.first_s)
        answer = record.answer if error is None else None
        if record.call is not None:
            record.call.note(model, level, answer, record.first_s)
        if answer is None:
            return
        self._child(self._texts, model, level).inc(len(answer))
        self._child(self._tokens, model, level, "source").inc(sum(t.source_tokens for t in answer))
        self._child(self._tokens, model, level, "target").inc(sum(t.target_tokens for t in answer))
        if not all(t.blank for t in answer):
            self._child(self._queue, model, level).observe(answer.queue_ms / 1000.0)
            self._child(self._compute, model, level).observe(answer.compute_ms / 1000.0)

    def _child(self, metric: Any, *labels: str) -> Any:
        """The time series of a metric with these labels, found faster than by `labels`, which checks them."""
        key = metric, labels
        if (found := self._children.get(key)) is None:
            found = self._children[key] = metric.labels(*labels)
        return found

    @contextmanager
    def reloading(self, model: str) -> Iterator[None]:
        """Counts the `with` block as a reload of this model's bundle."""
        try:
            yield
        except BaseException:
            self._reloads.labels(model, "failed").inc()
            raise
        self._reloads.labels(model, "done").inc()


def serve_metrics(
    registry: CollectorRegistry,
    host: str,
    port: int,
    guard: Callable[[WSGIApplication], WSGIApplication] | None = None,
) -> tuple[WSGIServer, int]:
    """Serves metrics over HTTP from a thread. Returns the HTTP server and its port. Raises as `check_port`.

    guard: wraps the application, and refuses callers who may not read the metrics.
    """
    check_port(host, port, "--metrics-port")
    server, _ = start_http_server(port, host, CollectorRegistry() if guard else registry)
    if guard is not None:  # until here it had no metrics
        server.set_app(guard(make_wsgi_app(registry)))
    return server, int(server.server_port)
