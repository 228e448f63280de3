"""How the HTTP listener starts, drains and stops; tokens and TLS."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from tests.serving.attacked import send_raw
from tests.serving.certificates import make_certificate
from tests.serving.fakes import GUARD_S, FakeFactory, eventually, write_bundle
from tests.serving.http.conftest import serving, url_of

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import PortInUseError
from hmc.serving.client import Client
from hmc.serving.http import exchange
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

BODY = {"texts": ["a"]}


def test_no_port_no_listener(tmp_path: Path, factory: FakeFactory) -> None:
    with BackgroundServer(write_bundle(tmp_path / "b"), ServerSettings(port=0), factory) as running:
        assert running.server is not None
        assert running.server.http_address is None


def test_a_busy_port_is_named(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory) as (running, address):
        port = int(address.rpartition(":")[2])
        settings = ServerSettings(port=0, http_port=port)
        with pytest.raises(PortInUseError, match=rf"port {port} .* http_port"):
            BackgroundServer(running.host.status().path, settings, factory).__enter__()
        assert httpx.post(f"{address}/v1/translate", json=BODY).status_code == 200
    with pytest.raises(InvalidRequestError, match="http_port -1: choose 0 to 65535"):
        ServerSettings(http_port=-1)


def test_live_before_ready(tmp_path: Path, factory: FakeFactory) -> None:
    factory.hold_at["full"] = threading.Event()
    running = BackgroundServer(write_bundle(tmp_path / "b"), ServerSettings(port=0, http_port=0), factory)
    with ThreadPoolExecutor(1) as pool:
        entering = pool.submit(running.__enter__)
        factory.wait_for(lambda: "full" in factory.asked)
        url = url_of(running)
        assert httpx.get(f"{url}/health/live").json() == {"status": "ok"}
        ready = httpx.get(f"{url}/health/ready")
        assert (ready.status_code, ready.json()["error"]) == (503, "the levels are being loaded")
        refused = httpx.post(f"{url}/v1/translate", json=BODY)
        assert (refused.status_code, refused.json()["code"]) == (503, "UNAVAILABLE")
        factory.hold_at["full"].set()
        entering.result(GUARD_S)
    try:
        assert httpx.get(f"{url}/health/ready").status_code == 200
    finally:
        running.stop()


def test_draining_finishes_running_requests(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory) as (running, url), ThreadPoolExecutor(1) as pool, httpx.Client() as kept:
        assert kept.get(f"{url}/health/ready").status_code == 200
        call = pool.submit(httpx.post, f"{url}/v1/translate", json={"texts": ["hold"]}, timeout=GUARD_S)
        factory["full"].wait_for(lambda: factory["full"].pending == 1)
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        eventually(lambda: running.server is not None and running.server.draining)
        factory["full"].release.set()
        response = call.result(GUARD_S)
        stopping.join(600)
        assert not stopping.is_alive()
        assert response.json()["translations"][0]["text"] == "full:hold"
        with pytest.raises(httpx.TransportError):
            kept.get(f"{url}/health/ready")


def test_the_drain_ends_after_its_time(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory, drain_seconds=0.2) as (running, url), ThreadPoolExecutor(1) as pool:
        call = pool.submit(httpx.post, f"{url}/v1/translate", json={"texts": ["hold"]}, timeout=GUARD_S)
        factory["full"].wait_for(lambda: factory["full"].pending == 1)
        running.stop()
        with pytest.raises(httpx.TransportError):
            call.result(GUARD_S)
        assert factory["full"].futures[0].cancelled()


@pytest.mark.parametrize("path", ["/v1/translate", "/v1/tokens", "/translate"])
def test_a_client_that_leaves_frees_its_place(tmp_path: Path, factory: FakeFactory, path: str) -> None:
    body = {
        "/v1/translate": {"texts": ["hold"]},
        "/v1/tokens": {"text": "hold"},
        "/translate": {"q": "hold", "source": "en", "target": "de"},
    }
    with serving(tmp_path, factory) as (_, url):
        full = factory["full"]
        leaving = HTTPConnection(url.removeprefix("http://"))
        leaving.request("POST", path, json.dumps(body[path]), {"Content-Type": "application/json"})
        full.wait_for(lambda: len(full.futures) == 1)
        leaving.close()
        full.wait_for(full.futures[0].cancelled)


HEAD = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: %s\r\nContent-Length: 99\r\n\r\n"


def test_a_client_that_leaves_in_its_body_is_no_error(
    tmp_path: Path, factory: FakeFactory, caplog: pytest.LogCaptureFixture
) -> None:
    ended = 'hmc_calls_total{code="CANCELLED",method="/hmc.v1.TranslationService/TranslateStream"} 1.0'
    with serving(tmp_path, factory) as (_, url):
        address = url.removeprefix("http://")
        send_raw(address, HEAD % (b"/v1/translate", b"application/json") + b'{"texts"')
        send_raw(address, HEAD % (b"/v1/stream", b"application/x-ndjson") + b'{"id": "1", "text": "hold"}\n{"id"')
        eventually(lambda: ended in httpx.get(f"{url}/metrics").text)
        factory["full"].wait_for(lambda: factory["full"].pending == 0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_stream_ends_with_its_error_while_its_client_still_sends(
    tmp_path: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client reads nothing until it has sent everything. A connection closed before that would be reset."""
    monkeypatch.setattr(exchange, "LINGER_S", GUARD_S)
    head = b"POST /v1/stream HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-ndjson\r\n"
    line = b'{"id": "1", "text": "a"}\n'
    with serving(tmp_path, factory) as (running, url):
        host, _, port = url.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=GUARD_S) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % (21 * len(line)) + line)
            factory["full"].wait_for(lambda: len(factory["full"].futures) == 1)
            stopping = threading.Thread(target=running.stop)
            stopping.start()
            eventually(lambda: running.server is not None and running.server.draining)
            for _ in range(20):
                time.sleep(0.02)
                connection.sendall(line)
            *_, last, end, _, _ = connection.makefile("rb").read().split(b"\r\n")
        stopping.join(GUARD_S)
    assert (json.loads(last)["error"]["code"], end) == ("UNAVAILABLE", b"0")


def test_the_end_of_the_drain_is_no_error(
    tmp_path: Path, factory: FakeFactory, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, factory, drain_seconds=0.0) as (running, url), ThreadPoolExecutor(1) as pool:
        call = pool.submit(httpx.post, f"{url}/v1/translate", json={"texts": ["hold"]}, timeout=GUARD_S)
        factory["full"].wait_for(lambda: factory["full"].pending == 1)
        running.stop()
        with pytest.raises(httpx.TransportError):
            call.result(GUARD_S)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_reader_of_events_that_leaves_frees_its_place(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory) as (_, url), httpx.Client() as client:
        full = factory["full"]
        accept = {"Accept": "text/event-stream"}
        with client.stream("POST", f"{url}/v1/tokens", json={"text": "hold"}, headers=accept) as response:
            lines = response.iter_lines()  # while it is referred to, the connection is open
            assert next(lines).startswith("data: ")
            assert full.pending == 1
        client.close()
        full.wait_for(full.futures[0].cancelled)


def test_a_token_is_asked_for_at_every_door(tmp_path: Path, factory: FakeFactory) -> None:
    with serving(tmp_path, factory, token="secret") as (_, url), httpx.Client(base_url=url) as web:
        for response in (
            web.post("/v1/translate", json=BODY),
            web.post("/v1/translate", json={"unknown": 1}),
            web.get("/v1/levels"),
            web.post("/v1/admin/reload", json={}),
            web.get("/metrics"),
        ):
            assert (response.status_code, response.json()["code"]) == (401, "UNAUTHENTICATED")
            assert response.headers["www-authenticate"] == "Bearer"
        for path in ("/", "/docs", "/openapi.json", "/static/main.js", "/health", "/health/live", "/health/ready"):
            assert web.get(path).status_code == 200
        web.headers["Authorization"] = "Bearer secret"
        assert web.post("/v1/translate", json=BODY).status_code == 200
        assert web.get("/metrics").status_code == 200
        assert web.get("/v1/levels", headers={"Authorization": "Bearer other"}).status_code == 401


def test_tls_is_that_of_the_grpc_port(tmp_path: Path, factory: FakeFactory) -> None:
    cert, key = make_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(cert))
    with serving(tmp_path, factory, tls_cert=cert, tls_key=key) as (running, url):
        assert url.startswith("https://127.0.0.1:")
        named = url.replace("127.0.0.1", "localhost")
        assert httpx.post(f"{named}/v1/translate", json=BODY, verify=trusted).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https", "http"))
        with Client(running.address, tls_ca=cert) as client:
            assert client.translate(["a"])[0].text == "full:a"
