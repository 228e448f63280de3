"""Prometheus metrics: of calls and their refusals, and of levels and devices, which are read when Prometheus asks.

Each server has a registry of its own, so one process can run several servers."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hmc.artifact.distribution import VERSION
from hmc.artifact.errors import (
    DeadlineExceededError,
    HmcError,
    MemoryInUseError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)
from hmc.engine.requests.work import ROW_BOUNDS
from hmc.serving.levels.slots import HostStatus, Lease, LevelStatus
from hmc.serving.requests.call import PresentCall, present_call
from hmc.serving.requests.results import Answer
from hmc.serving.server.observing.tally import Tallies, TallyCounter, TallyHistogram
from hmc.serving.wire.status import code_of

REASONS: tuple[tuple[type[HmcError], str], ...] = (
    (RateLimitedError, "rate"),
    (MemoryInUseError, "memory"),
    (OverloadedError, "queue_full"),
    (DeadlineExceededError, "deadline"),
    (TooLargeError, "limit"),
    (UnauthenticatedError, "unauthenticated"),
    (PermissionDeniedError, "permission"),
    (UnavailableError, "loading"),  # or "draining"
)
"""Errors and their reasons; the first one that fits counts."""
ALL_REASONS = (*(reason for _, reason in REASONS), "draining")
LEVEL = ["model", "level"]
GAUGES: dict[str, tuple[str, list[str]]] = {
    "bundle_info": ("1 for the bundle that each model serves.", ["model", "bundle_version"]),
    "level_loaded": ("1 for a level that is loaded, 0 for one that is not.", LEVEL),
    "level_failed": ("1 for a loaded level that failed and has answered nothing since, else 0.", LEVEL),
    "pending_texts": ("Texts queued or running, by level.", LEVEL),
    "queued_sentences": ("Sentences in the queue, by level.", LEVEL),
    "queue_size_sentences": ("--queue-size, by level.", LEVEL),
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
        statuses = self._statuses()
        families = _families()

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
        buckets = []
        count = 0
        bounds = (*map(str, map(float, ROW_BOUNDS)), "+Inf")
        for bound, steps in zip(bounds, level.work.total.steps_by_rows, strict=True):
            count += steps
            buckets.append((bound, float(count)))
        family.add_metric(labels, buckets, float(level.work.total.rows))


def _values(level: LevelStatus) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """(name, further labels, value) of a loaded level."""
    work = level.work
    total = level.work.total
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


BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms, in seconds."""


class RequestRecord:
    """What becomes known about one request (a call, or one text of a stream) while it is served.

    A `with` block of it is counted as one request, under the status of the error that leaves the block.
    """

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

    def __init__(self, count: Callable[[RequestRecord, BaseException | None], None]) -> None:
        """count: called when the request has ended, with its error if it has failed. Made in the call that has it."""
        self._count = count
        self._began = time.perf_counter()
        self.call = present_call()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._count(self, error)

    def served_by(self, lease: Lease) -> None:
        """Records the level that serves the request."""
        self.model = lease.model
        self.level = lease.level.name
        self.bundle_version = lease.bundle_version
        self.chosen_by = lease.chosen_by

    def piece(self) -> None:
        """Records that a piece of the translation is there. Only the first one counts."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._began


class Metrics:
    """Counts requests by model, level and outcome, their times and tokens, and reads what levels do. Requests and calls
    are counted on one thread."""

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
        self._calls = TallyCounter("hmc_calls", "Calls ended, by method and status code.", ["method", "code"])
        self._requests = TallyCounter(
            "hmc_requests",
            "Requests ended (a call, or a text of a stream), by model, level and status code.",
            [*LEVEL, "code"],
        )
        self._chosen = TallyCounter(
            "hmc_level_choices", "Requests by level, and by how they chose it.", [*LEVEL, "chosen_by"]
        )
        self._texts = TallyCounter("hmc_texts", "Texts translated, by level.", LEVEL)
        self._tokens = TallyCounter(
            "hmc_tokens", "Tokens read (source) and written (target), by level.", [*LEVEL, "side"]
        )
        self._queue = self._histogram("hmc_queue_seconds", "Seconds from arrival to the first computation, by level.")
        self._compute = self._histogram("hmc_compute_seconds", "Seconds of computation for a request, by level.")
        self._first = self._histogram(
            "hmc_first_token_seconds", "Seconds until the first piece of calls that answer in pieces, by level."
        )
        self._draining = draining
        self._refusals = TallyCounter(
            "hmc_refusals", "Calls, and texts of streams, that were refused, by reason.", [*LEVEL, "reason"]
        )
        for reason in ALL_REASONS:
            self._refusals.add(("", "", reason), 0)
        counters = (self._calls, self._requests, self._chosen, self._texts, self._tokens, self._refusals)
        self.registry.register(Tallies([*counters, self._queue, self._compute, self._first]))
        self._reloads = self._counter("hmc_reloads", "Reloads of a bundle, by model and outcome.", ["model", "outcome"])
        self.upkeep = self._counter(
            "hmc_background_errors", "Errors of work in the background, which is tried again, by work.", ["work"]
        )
        self.registry.register(LevelMetrics(statuses))

    def expect(self, statuses: Sequence[HostStatus]) -> None:
        """Begins counters at 0 that alerts watch. Otherwise Prometheus could not see their first step."""
        for status in statuses:
            for outcome in ("done", "failed"):
                self._reloads.labels(status.model, outcome)
            for level in status.levels:
                for reason in ("queue_full", "deadline"):
                    self._refusals.add((status.model, level.name, reason), 0)

    def _counter(self, name: str, help_text: str, labels: Sequence[str]) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, help_text, labels, registry=self.registry)

    @staticmethod
    def _histogram(name: str, help_text: str) -> TallyHistogram:
        return TallyHistogram(name, help_text, LEVEL, BUCKETS_S)

    def call(self, call: PresentCall, code: grpc.StatusCode, error: BaseException | None = None) -> None:
        """Counts a call that ended. error: what ended it, if it failed."""
        self._calls.add((call.method, code.name))
        if error is not None:
            self._refuse(call, error)

    def _refuse(self, call: PresentCall, error: BaseException, model: str = "", level: str = "") -> None:
        """Counts an error of a call if it refuses a request and was not counted before. model, level: empty if
        unknown."""
        reason = next((reason for kind, reason in REASONS if isinstance(error, kind)), "")
        if not reason or (call.counted is not None and call.counted() is error):
            return
        if reason == "loading" and self._draining():
            reason = "draining"
        call.counted = weakref.ref(error)
        self._refusals.add((model, level, reason))

    def ended(self, record: RequestRecord, error: BaseException | None = None) -> None:
        """Counts a request that has ended. error: what ended it, if it failed."""
        code = grpc.StatusCode.OK if error is None else code_of(error)
        model = record.model
        level = record.level
        if error is not None:
            self._refuse(record.call, error, model, level)
        self._requests.add((model, level, code.name))
        if record.chosen_by:
            self._chosen.add((model, level, record.chosen_by))
        served = (model, level)
        if record.first_s is not None:
            self._first.observe(served, record.first_s)
        answer = record.answer if error is None else None
        record.call.note(model, level, answer, record.first_s)
        if answer is None:
            return
        source = 0
        target = 0
        for translation in answer.translations:
            source += translation.source_tokens
            target += translation.target_tokens
        self._texts.add(served, len(answer.translations))
        self._tokens.add((model, level, "source"), source)
        self._tokens.add((model, level, "target"), target)
        if source:  # not all of them are blank
            self._queue.observe(served, answer.queue_ms / 1000.0)
            self._compute.observe(served, answer.compute_ms / 1000.0)

    @contextmanager
    def reloading(self, model: str) -> Iterator[None]:
        """Counts the `with` block as a reload of this model's bundle."""
        try:
            yield
        except BaseException:
            self._reloads.labels(model, "failed").inc()
            raise
        self._reloads.labels(model, "done").inc()
