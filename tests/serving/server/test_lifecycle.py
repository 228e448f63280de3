"""How a server starts, drains and stops."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.serving.fakes import FakeFactory, eventually, failure

from hmc.artifact import HmcError, InvalidRequestError
from hmc.artifact.errors import DeviceUnavailableError, PortInUseError, UnavailableError
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2 as pb

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


GUARD_S = 600.0
"""Seconds after which a server that does not stop fails its test; less than the drain of the fixture `server`."""


def draining(running: BackgroundServer) -> bool:
    return running.server is not None and running.server.draining


def stops_before_the_drain_ends(running: BackgroundServer) -> None:
    stopping = threading.Thread(target=running.stop)
    stopping.start()
    stopping.join(GUARD_S)
    assert not stopping.is_alive()


def test_a_busy_port_is_an_error_that_names_it(server: BackgroundServer, bundle: Path, factory: FakeFactory) -> None:
    assert server.server is not None
    port = server.server.port
    with pytest.raises(PortInUseError, match=rf"port {port} on 127.0.0.1 is in use .* another port"):
        BackgroundServer(bundle, ServerSettings(port=port), factory).__enter__()
    with pytest.raises(PortInUseError, match=rf"port {port} .* metrics_port"):
        BackgroundServer(bundle, ServerSettings(port=0, metrics_port=port), factory).__enter__()
    with Client(server.address) as client:
        assert client.translate(["a"])[0].text == "full:a"


def test_an_address_of_another_machine_is_an_error(bundle: Path, factory: FakeFactory) -> None:
    with pytest.raises(InvalidRequestError, match=r"cannot listen on 192\.0\.2\.1:50\d+: .*choose another host"):
        BackgroundServer(bundle, ServerSettings(host="192.0.2.1"), factory).__enter__()


def test_a_level_that_does_not_load_stops_the_start(bundle: Path, factory: FakeFactory) -> None:
    factory.fail["full"] = DeviceUnavailableError("no cuda here")
    running = BackgroundServer(bundle, ServerSettings(port=0), factory)
    with pytest.raises(DeviceUnavailableError, match="no cuda here"):
        running.__enter__()
    assert running.server is not None
    open_ports = {c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN}
    assert running.server.port not in open_ports  # another process may listen there by now


def test_draining_finishes_running_calls_and_refuses_new_ones(
    server: BackgroundServer, stub: Any, factory: FakeFactory
) -> None:
    running = stub.Translate.future(pb.TranslateRequest(texts=["hold"]))
    health: Any = health_pb2_grpc.HealthStub(grpc.insecure_channel(server.address))
    watch = health.Watch(health_pb2.HealthCheckRequest(service="hmc.v1.TranslationService"))
    assert next(watch).status == SERVING
    factory["full"].wait_for(lambda: factory["full"].pending == 1)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    assert next(watch).status == NOT_SERVING
    with Client(server.address) as late, pytest.raises(UnavailableError):
        late.translate(["a"])
    watch.cancel()
    assert not running.done()
    factory["full"].release.set()
    assert running.result(GUARD_S).translations[0].text == "full:hold"
    stopping.join(GUARD_S)
    assert not stopping.is_alive()
    assert {t.closed for t in factory.made} == {"cancelled"}  # with nothing left to drain


@pytest.mark.parametrize("kind", ["watch", "reflection"])
def test_streams_without_work_do_not_hold_up_the_end(server: BackgroundServer, kind: str) -> None:
    hold = threading.Event()

    def requests() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        hold.wait()

    channel = grpc.insecure_channel(server.address)
    if kind == "watch":
        health: Any = health_pb2_grpc.HealthStub(channel)
        answers = health.Watch(health_pb2.HealthCheckRequest(service=""))
    else:
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = reflection.ServerReflectionInfo(requests())
    next(answers)
    stops_before_the_drain_ends(server)
    if kind == "watch":
        assert next(answers).status == NOT_SERVING
        assert failure(lambda: next(answers)) == ("UNAVAILABLE", "the server is shutting down")
    else:
        assert list(answers) == []
    hold.set()


def test_draining_ends_open_streams_after_their_answers(
    server: BackgroundServer, stub: Any, factory: FakeFactory
) -> None:
    hold = threading.Event()

    def requests() -> Iterator[pb.TranslateStreamRequest]:
        yield pb.TranslateStreamRequest(id="1", text="hold")
        hold.wait()

    answers = stub.TranslateStream(requests())
    factory["full"].wait_for(lambda: factory["full"].pending == 1)
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    eventually(lambda: draining(server))
    factory["full"].release.set()
    assert next(answers).translation.text == "full:hold"
    code, message = failure(lambda: next(answers))
    stopping.join(GUARD_S)
    assert not stopping.is_alive()
    hold.set()
    assert (code, "shutting down" in message) == ("UNAVAILABLE", True)


def test_the_drain_ends_after_its_time(bundle: Path, factory: FakeFactory) -> None:
    running = BackgroundServer(bundle, ServerSettings(port=0, drain_seconds=0.2), factory)
    with running, Client(running.address) as client, ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.translate, ["hold"])
        factory["full"].wait_for(lambda: factory["full"].pending == 1)
        running.stop()
        with pytest.raises(HmcError):
            call.result(GUARD_S)
    assert factory["full"].futures[0].cancelled()


def test_a_missing_server_is_unavailable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with Client(address) as client, pytest.raises(UnavailableError, match="is `hmc serve` running there"):
            client.translate(["a"], timeout=GUARD_S)


def test_options_reach_the_translator(client: Client) -> None:
    (translation,) = client.translate(["a"], options=DecodeOptions(beam_size=3, n_best=3))
    assert [other.text for other in translation.alternatives] == ["a #1", "a #2"]


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"port": 70000}, "port 70000: choose 0 to 65535"),
        ({"queue_size": 0}, "queue_size 0: choose 1 or more"),
        ({"drain_seconds": -1.0}, "drain_seconds"),
        ({"drain_seconds": float("nan")}, "drain_seconds"),
        ({"levels": ()}, "name at least one, or give all"),
        ({"tls_cert": Path("x")}, "TLS needs both"),
        ({"token": ""}, "printable ASCII"),
        ({"token": "ü"}, "printable ASCII"),
    ],
)
def test_settings_out_of_range(values: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        ServerSettings(**values)


@pytest.mark.parametrize("released", [True, False])
def test_a_drain_does_not_hang_on_texts_that_wait(bundle: Path, factory: FakeFactory, released: bool) -> None:
    running = BackgroundServer(bundle, ServerSettings(port=0, drain_seconds=3 * GUARD_S if released else 0.2), factory)
    answers: list[str] = []
    with running, Client(running.address) as client, ThreadPoolExecutor(1) as pool:
        full = factory["full"]
        full.queue_size = 2  # of which streams may take one place

        def call() -> None:
            answers.extend(a.result().text for a in client.translate_stream(["hold 0", "hold 1", "hold 2"]))

        calling = pool.submit(call)
        full.wait_for(lambda: len(full.waiting) == 1)
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        if released:
            eventually(lambda: draining(running))
            full.release.set()
        stopping.join(GUARD_S)
        assert not stopping.is_alive()
        with pytest.raises(HmcError):
            calling.result(GUARD_S)
    assert answers == (["full:hold 0", "full:hold 1"] if released else [])
    assert full.texts == (["hold 0", "hold 1"] if released else ["hold 0"])
