"""OpenTelemetry traces: a span for each call. They need the extra `tracing`, and hold no texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc

from hmc.artifact.distribution import VERSION, how_to_install
from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

PATH = "/v1/traces"
"""Where collectors listen, if the URL has no path."""
PARENT = ("traceparent", "tracestate")
"""The metadata, or headers, by which a caller names its own span (W3C Trace Context)."""


class Traces:
    """Makes spans of calls."""

    def __init__(self, provider: TracerProvider) -> None:
        """provider: where the spans go."""
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = provider.get_tracer("hmc", VERSION)

    def begin(self, method: str, request_id: str, metadata: Mapping[str, Any]) -> Any:
        """Begins the span of a call. method: its full name. metadata: of the call, which may name a parent span."""
        from opentelemetry.trace import SpanKind

        carrier = {name: str(metadata[name]) for name in PARENT if name in metadata}
        service, _, name = method.removeprefix("/").partition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name, "hmc.request_id": request_id}
        return self._tracer.start_span(
            method.removeprefix("/"), self._propagator.extract(carrier), SpanKind.SERVER, attributes
        )

    def end(self, span: Any, code: grpc.StatusCode, known: Mapping[str, str | int | float]) -> None:
        """Ends the span of a call. known: what the call has told, as attributes."""
        from opentelemetry.trace import StatusCode

        span.set_attribute("rpc.grpc.status_code", code.value[0])
        span.set_attributes({f"hmc.{name}": value for name, value in known.items()})
        if code is not grpc.StatusCode.OK:
            span.set_status(StatusCode.ERROR, code.name)
        span.end()

    def close(self) -> None:
        """Sends what is left. It may take some seconds if the collector does not answer."""
        self._provider.shutdown()


def traces_to(url: str) -> Traces:
    """Spans that go to a collector. url: of its OTLP listener over HTTP, such as http://localhost:4318.

    Raises FailedPreconditionError if the OpenTelemetry SDK is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise FailedPreconditionError(
            f"trace_to needs the OpenTelemetry SDK, which is not installed: {how_to_install('tracing')}"
        ) from error
    endpoint = url if urlsplit(url).path not in ("", "/") else url.rstrip("/") + PATH
    name = os.environ.get("OTEL_SERVICE_NAME") or "hmc"
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.version": VERSION}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return Traces(provider)


def check_trace_url(url: str) -> None:
    """Raises InvalidRequestError unless `url` is an address over HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequestError(f"trace_to {url!r}: give the URL of a collector, such as http://localhost:4318")
