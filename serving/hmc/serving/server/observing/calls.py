"""The present call, and the log lines about it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import grpc

from hmc.serving.requests.results import Answer
from hmc.serving.server.observing.traces import Traces

log = logging.getLogger(__name__)


@dataclass
class ServedCall:
    """A call that runs."""

    method: str
    """Its full name, such as `/hmc.v1.TranslationService/Translate`."""
    request_id: str
    """The client's `x-request-id`, or a new one."""
    caller: str = ""
    """The caller's name, empty until it is known."""
    began: float = field(default_factory=time.perf_counter)
    """Seconds, on a clock without a meaning of its own."""
    known: dict[str, str | int | float] = field(default_factory=dict)
    """What its requests have told so far: model, level, texts, and times in milliseconds."""

    span: Any = None
    """Its span, if calls are traced."""

    def note(self, model: str, level: str, answer: Answer | None, first_s: float | None) -> None:
        """Adds what a request of this call has told. A stream has many: the longest times and the last level count."""
        known = self.known
        if level:
            known["model"], known["served_level"] = model, level
        if first_s is not None:
            known["first_token_ms"] = round(1000.0 * first_s, 3)
        if answer is not None:
            known["text_count"] = int(known.get("text_count", 0)) + len(answer)
            for name, value in (("queue_ms", answer.queue_ms), ("compute_ms", answer.compute_ms)):
                known[name] = max(float(known.get(name, 0.0)), round(value, 3))


current_call: ContextVar[ServedCall | None] = ContextVar("current_call", default=None)
"""Set while a call runs. Log lines that are written inside it name it."""


class CallLog:
    """Writes the lines about calls."""

    def __init__(self, *, calls: bool = False, texts: bool = False, traces: Traces | None = None) -> None:
        """calls: a line for each call that ends. texts: a line with the texts of each request. traces: makes a span of
        each call; None: there are no spans."""
        self._calls, self._texts, self._traces = calls, texts, traces

    def begin(self, method: str, request_id: str) -> ServedCall:
        """Makes a call the present one. request_id: its name."""
        begun = ServedCall(method, request_id)
        current_call.set(begun)
        return begun

    def trace(self, begun: ServedCall, metadata: Mapping[str, Any]) -> None:
        """Begins the span of a call, if calls are traced. metadata: of the call."""
        if self._traces is not None:
            begun.span = self._traces.begin(begun.method, begun.request_id, metadata)

    def texts(self, texts: Sequence[str]) -> None:
        """Logs the texts of a request, if texts may be logged."""
        if self._texts:
            log.info("texts %s", list(texts), extra={"fields": {"texts": list(texts)}})

    def end(self, method: str, code: grpc.StatusCode) -> None:
        """Logs that the present call has ended, if calls are logged, and ends its span."""
        ended = current_call.get()
        if self._traces is not None and ended is not None and ended.span is not None:
            caller = {"caller": ended.caller} if ended.caller else {}
            self._traces.end(ended.span, code, {**ended.known, **caller})
            ended.span = None
        if not self._calls:
            return
        fields: dict[str, object] = {"rpc": method, "status": code.name}
        if ended is not None:
            fields["milliseconds"] = round(1000.0 * (time.perf_counter() - ended.began), 3)
            fields.update(ended.known)
        log.info("%s %s", method, code.name, extra={"fields": fields})
