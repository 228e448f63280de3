"""Why a call, or a text of a stream, was refused: a few reasons that operators can act on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar

from prometheus_client import CollectorRegistry, Counter

from hmc.artifact.errors import (
    DeadlineExceededError,
    HmcError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)

REASONS: tuple[tuple[type[HmcError], str], ...] = (
    (RateLimitedError, "rate"),
    (OverloadedError, "queue_full"),
    (DeadlineExceededError, "deadline"),
    (TooLargeError, "limit"),
    (UnauthenticatedError, "unauthenticated"),
    (PermissionDeniedError, "permission"),
    (UnavailableError, "loading"),  # or "draining"
)
"""Errors and their reasons; the first one that fits counts."""
ALL_REASONS = (*(reason for _, reason in REASONS), "draining")
_counted: ContextVar[weakref.ref[BaseException] | None] = ContextVar("_counted", default=None)
"""The last error that was counted in the present call. An error passes two places that count."""


def reason_of(error: BaseException, *, draining: bool) -> str | None:
    """Why this error refuses a request; None if it is no refusal. draining: whether the server is shutting down."""
    for kind, reason in REASONS:
        if isinstance(error, kind):
            return "draining" if reason == "loading" and draining else reason
    return None


class Refusals:
    """Counts refusals by model, level and reason."""

    def __init__(self, registry: CollectorRegistry, draining: Callable[[], bool]) -> None:
        """draining: returns whether the server is shutting down."""
        self._draining = draining
        self._counter = Counter(
            "hmc_refusals",
            "Calls, and texts of streams, that were refused, by reason.",
            ["model", "level", "reason"],
            registry=registry,
        )
        for reason in ALL_REASONS:
            self._counter.labels("", "", reason)

    def expect(self, model: str, level: str) -> None:
        """Begins the counters of a level at 0."""
        for reason in ("queue_full", "deadline"):
            self._counter.labels(model, level, reason)

    def count(self, error: BaseException, model: str = "", level: str = "") -> None:
        """Counts an error if it refuses a request and was not counted before. model, level: empty if unknown."""
        reason = reason_of(error, draining=self._draining())
        last = _counted.get()
        if reason is None or (last is not None and last() is error):
            return
        _counted.set(weakref.ref(error))
        self._counter.labels(model, level, reason).inc()
