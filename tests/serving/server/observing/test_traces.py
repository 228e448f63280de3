"""Spans of calls on a real server: by the SDK's exporter in memory, and by a collector over HTTP."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.serving.fakes import FakeFactory, eventually, failure

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.observing.traces import Traces
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

SECRET = "geheimnis"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
SERVICE = "hmc.v1.TranslationService"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(bundle: Path, factory: FakeFactory, spans: InMemorySpanExporter) -> Iterator[BackgroundServer]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with BackgroundServer(bundle, ServerSettings(port=0, http_port=0), factory, Traces(provider)) as running:
        yield running


def finished(spans: InMemorySpanExporter, number: int) -> list[ReadableSpan]:
    """The spans, once there are so many."""
    eventually(lambda: len(spans.get_finished_spans()) >= number)
    return list(spans.get_finished_spans())


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_span_of_each_call(traced: BackgroundServer, spans: InMemorySpanExporter) -> None:
    with grpc.insecure_channel(traced.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)
        metadata = (("traceparent", TRACEPARENT), ("x-request-id", "id-1"))
        request = pb.TranslateRequest(texts=[SECRET, SECRET], level=pb.LevelSelector(name="h6"))
        stub.Translate(request, metadata=metadata)
        (span,) = finished(spans, 1)
        assert (span.name, span.kind) == (f"{SERVICE}/Translate", SpanKind.SERVER)
        assert span.context is not None
        assert span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        assert attributes(span) == {
            "rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": "Translate", "rpc.grpc.status_code": 0,
            "hmc.request_id": "id-1", "hmc.model": "en-de", "hmc.served_level": "h6", "hmc.text_count": 2,
            "hmc.queue_ms": 1.0, "hmc.compute_ms": 2.0,
        }  # fmt: skip
        assert span.end_time is not None

        list(stub.TranslateTokens(pb.TranslateTokensRequest(text=SECRET)))
        span = finished(spans, 2)[1]
        assert span.parent is None
        assert attributes(span)["hmc.first_token_ms"] > 0
        assert attributes(span)["hmc.served_level"] == "full"

        list(stub.TranslateStream(pb.TranslateStreamRequest(text=SECRET) for _ in range(3)))
        span = finished(spans, 3)[2]
        assert (span.name, attributes(span)["hmc.text_count"]) == (f"{SERVICE}/TranslateStream", 3)

        request = pb.TranslateRequest(texts=[SECRET], level=pb.LevelSelector(name=SECRET))
        assert failure(lambda: stub.Translate(request))[0] == "NOT_FOUND"
        span = finished(spans, 4)[3]
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "NOT_FOUND")
        assert attributes(span)["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


def test_over_http(traced: BackgroundServer, spans: InMemorySpanExporter) -> None:
    assert traced.server is not None
    url = f"{traced.server.http_address}/v1/translate"
    httpx.post(url, json={"texts": [SECRET]}, headers={"traceparent": TRACEPARENT}).raise_for_status()
    (span,) = finished(spans, 1)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert attributes(span)["rpc.method"] == "Translate"


@pytest.mark.parametrize("sent", ["", "nonsense", "00-0-0-00", "ff" * 500])
def test_a_malformed_parent_is_ignored(traced: BackgroundServer, spans: InMemorySpanExporter, sent: str) -> None:
    with grpc.insecure_channel(traced.address) as channel:
        stub: Any = rpc.TranslationServiceStub(channel)
        stub.Translate(pb.TranslateRequest(texts=["a"]), metadata=(("traceparent", sent),))
    assert finished(spans, 1)[0].parent is None


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The URL of a collector, and what it has got."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                data = gzip.decompress(data)
            got.append(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_a_collector_gets_the_spans_before_the_server_has_stopped(bundle: Path, factory: FakeFactory) -> None:
    with collector() as (url, got):
        settings = ServerSettings(port=0, trace_to=url)
        with BackgroundServer(bundle, settings, factory) as running, Client(running.address) as client:
            client.translate([SECRET])
        (sent,) = [resource for request in got for resource in request.resource_spans]
    named = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert named["service.name"] == "hmc"
    assert [span.name for scope in sent.scope_spans for span in scope.spans] == [f"{SERVICE}/Translate"]
    assert SECRET not in str(got)


def test_without_the_extra(bundle: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    settings = ServerSettings(port=0, trace_to="http://localhost:4318")
    with (
        pytest.raises(FailedPreconditionError, match=r"OpenTelemetry SDK, which is not installed.*\[tracing\]"),
        BackgroundServer(bundle, settings, factory),
    ):
        pass


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://localhost", "http://", ""])
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="trace_to"):
        ServerSettings(trace_to=url)
