"""The log lines about calls, and their spans."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from hmc.serving.requests.call import PresentCall
from hmc.serving.server.observing.traces import Traces

log = logging.getLogger(__name__)


class CallLog:
    """Writes the lines about calls."""

    def __init__(self, *, calls: bool = False, texts: bool = False, traces: Traces | None = None) -> None:
        """calls: a line for each call that ends. texts: a line with the texts of each request. traces: makes a span of
        each call; None: there are no spans."""
        self._calls = calls
        self._texts = texts
        self._traces = traces

    def begin(self, call: PresentCall, metadata: Mapping[str, Any]) -> None:
        """Begins the span of a call, if calls are traced. metadata: of the call."""
        if self._traces is not None:
            call.span = self._traces.begin(call.method, call.request_id, metadata)

    def texts(self, texts: Sequence[str]) -> None:
        """Logs the texts of a request, if texts may be logged."""
        if self._texts:
            log.info("texts %s", list(texts), extra={"fields": {"texts": list(texts)}})

    def end(self, call: PresentCall, code: grpc.StatusCode) -> None:
        """Logs that a call has ended, if calls are logged, and ends its span."""
        if self._traces is not None and call.span is not None:
            caller = {"caller": call.principal.name} if call.principal.name else {}
            self._traces.end(call.span, code, {**call.known, **caller})
            call.span = None
        if self._calls:
            fields: dict[str, object] = {"rpc": call.method, "status": code.name}
            fields["milliseconds"] = round(1000.0 * (time.perf_counter() - call.began), 3)
            fields.update(call.known)
            log.info("%s %s", call.method, code.name, extra={"fields": fields})
