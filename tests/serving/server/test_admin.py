"""Levels, health, reflection, changes of what is loaded, tokens and metrics, on a real socket."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tests.serving.fakes import GUARD_S, FakeFactory, eventually, failure, write_bundle
from tests.support.metrics import metrics_of

from hmc.artifact.errors import (
    FailedPreconditionError,
    LevelNotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from hmc.serving import Selector
from hmc.serving.client import Client, LevelBytes
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.wire import status
from hmc.v1 import translation_pb2 as pb
from hmc.v1 import translation_pb2_grpc as rpc

GRAPHS = ("encoder.onnx", "decoder.onnx")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING

# ---- health, reflection, levels, admin ----


def test_levels(client: Client) -> None:
    levels = client.levels()
    assert [(x.name, x.heads, x.loaded, x.is_default) for x in levels.levels] == [
        ("full", 24, True, True), ("h12", 12, True, False), ("h6", 6, True, False),
    ]  # fmt: skip
    assert (levels.source_language, levels.target_language, levels.device) == ("en", "de", "cpu")
    assert levels.levels[1].quality is not None
    assert levels.levels[1].quality.bleu_delta == pytest.approx(-0.2)
    client.translate(["a"], "h6")
    latency = client.levels().levels[2].latency
    assert latency is not None
    assert latency.requests == 1


def test_levels_have_their_bytes_split(client: Client, bundle: Path) -> None:
    listed = client.levels()
    assert [x.memory for x in listed.levels] == [LevelBytes(40, 100), LevelBytes(30, 100), LevelBytes(20, 100)]
    assert listed.memory_bytes > 2**20
    sizes = [sum((bundle / x.name / graph).stat().st_size for graph in GRAPHS) for x in listed.levels]
    assert [x.disk for x in listed.levels] == [LevelBytes(size, 0) for size in sizes]
    assert client.unload_level("h12").memory is None
    client.unload_level("h6")
    assert [x.memory for x in client.levels().levels] == [LevelBytes(140, 0), None, None]
    assert client.load_level("h6").memory == LevelBytes(20, 100)


def test_levels_say_why_one_stopped_unexpectedly(client: Client, factory: FakeFactory) -> None:
    factory["h12"].failure = "out of memory"
    assert [level.failure for level in client.levels().levels] == ["", "out of memory", ""]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_describes_the_services(channel: grpc.Channel, version: str) -> None:
    database: Any = ProtoReflectionDescriptorDatabase(channel)
    if version == "v1":
        from grpc_reflection.v1alpha import reflection_pb2

        database._stub.ServerReflectionInfo = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
    services = set(database.get_services())
    assert {"hmc.v1.TranslationService", "hmc.v1.AdminService", "grpc.health.v1.Health"} <= services
    assert "hmc/v1/translation.proto" in database.FindFileContainingSymbol("hmc.v1.TranslationService").name


def test_health_is_not_serving_until_the_levels_are_warm(bundle: Path, factory: FakeFactory) -> None:
    factory.hold_at["full"] = threading.Event()
    running = BackgroundServer(bundle, ServerSettings(port=0), factory)
    entering = threading.Thread(target=running.__enter__)
    entering.start()
    eventually(lambda: running.server is not None and running.server.port != 0)
    with grpc.insecure_channel(running.address) as channel, Client(running.address) as client:
        health: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="hmc.v1.TranslationService")
        assert health.Check(request, wait_for_ready=True).status == NOT_SERVING
        with pytest.raises(UnavailableError, match="still loading"):
            client.translate(["a"])
        with pytest.raises(UnavailableError, match=r"not ready after 0\.2 s: its health is not SERVING yet"):
            client.wait_ready(0.2)
        factory.hold_at["full"].set()
        client.wait_ready(GUARD_S)
        for service in ("", "hmc.v1.TranslationService", "hmc.v1.AdminService"):
            assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
        code, _ = failure(lambda: health.Check(health_pb2.HealthCheckRequest(service="nope")))
        assert code == "NOT_FOUND"
    entering.join()
    running.stop()


def test_admin_unloads_and_loads(client: Client) -> None:
    assert client.unload_level("h6").loaded is False
    with pytest.raises(FailedPreconditionError, match="level 'h6' is not loaded"):
        client.translate(["a"], "h6")
    with pytest.raises(FailedPreconditionError, match="'full' is the default level and stays loaded"):
        client.unload_level("full")
    with pytest.raises(LevelNotFoundError, match="unknown level 'h7'"):
        client.load_level("h7")
    assert client.load_level("h6").loaded is True
    assert client.translate(["a"], "h6")[0].text == "h6:a"


def test_lazy_levels_load_when_a_request_chooses_them(bundle: Path, factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, lazy=True)
    with BackgroundServer(bundle, settings, factory) as running, Client(running.address) as client:
        assert [t.level for t in factory.made] == ["full"]
        assert client.translate(["a"], Selector(max_heads=6))[0].text == "h6:a"


def test_reload_loses_no_request(client: Client, factory: FakeFactory, tmp_path: Path) -> None:
    bundles = [write_bundle(tmp_path / name, version=name) for name in ("b1", "b2")]
    stop = threading.Event()

    def load() -> list[str]:
        seen = []
        while not stop.is_set():
            answer = client.translate(["a", "b"], Selector(max_heads=12))
            assert [t.text for t in answer] == ["h12:a", "h12:b"]
            seen.append(answer.bundle_version)
        return seen

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load) for _ in range(4)]
        for _ in range(2):
            for path in bundles:
                assert client.reload(path) == path.name
        stop.set()
        seen = [version for done in loads for version in done.result(GUARD_S)]
    assert {"b1", "b2"} <= set(seen)
    eventually(lambda: all(t.closed == "drained" for t in factory.made[:-3]))


def test_a_failed_reload_leaves_the_bundle_serving(client: Client, tmp_path: Path) -> None:
    (tmp_path / "future").mkdir()
    (tmp_path / "future" / "bundle.json").write_text('{"schema_version": 99}')
    with pytest.raises(FailedPreconditionError, match="schema version 99; this hmc reads versions 2 to 6"):
        client.reload(tmp_path / "future")
    broken = write_bundle(tmp_path / "broken")
    (broken / "h6" / "encoder.onnx").write_text("changed")
    (broken / "h12" / "encoder.onnx").unlink()
    with pytest.raises(FailedPreconditionError, match=r"(?s)h12/encoder\.onnx is missing.*h6/encoder\.onnx has sha256"):
        client.reload(broken)
    assert client.translate(["a"]).bundle_version == "0123456789abcdef"


# ---- token, metrics ----


def test_every_call_but_health_checks_needs_the_token(bundle: Path, factory: FakeFactory) -> None:
    with BackgroundServer(bundle, ServerSettings(port=0, token="s3cret"), factory) as running:
        with Client(running.address) as anonymous:
            anonymous.wait_ready(GUARD_S)
            for call in (
                lambda: anonymous.translate(["a"]),
                anonymous.levels,
                lambda: list(anonymous.translate_stream(["a"])),
            ):
                with pytest.raises(UnauthenticatedError, match="send `authorization: Bearer TOKEN`"):
                    call()
        with (
            Client(running.address, token="wrong") as wrong,
            pytest.raises(UnauthenticatedError, match="not this server's"),
        ):
            wrong.levels()
        with Client(running.address, token="s3cret") as client:
            assert client.translate(["a"])[0].text == "full:a"
        with grpc.insecure_channel(running.address) as channel:
            assert failure(ProtoReflectionDescriptorDatabase(channel).get_services)[0] == "UNAUTHENTICATED"


def test_metrics(bundle: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "DEADLINE_SLACK_S", 2 * GUARD_S)  # what is cancelled is late, if it has a deadline
    late_call = 'hmc_calls_total{code="DEADLINE_EXCEEDED",method="/hmc.v1.TranslationService/Translate"} 1.0'
    with (
        BackgroundServer(bundle, ServerSettings(port=0, metrics_port=0), factory) as running,
        Client(running.address) as client,
    ):
        client.translate(["a", "b"], "h6")
        list(client.translate_stream(["a"], "h12"))
        with pytest.raises(LevelNotFoundError):
            client.translate(["a"], "nope")
        client.translate(["", " "], "h6")
        with grpc.insecure_channel(running.address) as channel:
            stub: Any = rpc.TranslationServiceStub(channel)
            request = pb.TranslateRequest(texts=["a"], options=pb.DecodingOptions(beam_size=99))
            assert failure(lambda: stub.Translate(request))[0] == "INVALID_ARGUMENT"
            texts = [pb.TranslateStreamRequest(text="a", options=request.options)]
            assert next(stub.TranslateStream(iter(texts))).error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            late = stub.Translate.future(pb.TranslateRequest(texts=["hold"]), timeout=GUARD_S)
            factory["full"].wait_for(lambda: factory["full"].pending == 1)
            late.cancel()
            factory["full"].wait_for(lambda: factory["full"].pending == 0)
        eventually(
            lambda: late_call in metrics_of(running).splitlines()
        )  # a call is counted after its texts were cancelled
        lines = metrics_of(running).splitlines()
    for expected in (
        'hmc_requests_total{code="OK",level="h6",model="en-de"} 2.0',
        'hmc_requests_total{code="INVALID_ARGUMENT",level="",model=""} 2.0',
        'hmc_requests_total{code="DEADLINE_EXCEEDED",level="full",model="en-de"} 1.0',
        'hmc_requests_total{code="OK",level="h12",model="en-de"} 1.0',
        'hmc_requests_total{code="NOT_FOUND",level="",model=""} 1.0',
        late_call,
        'hmc_texts_total{level="h6",model="en-de"} 4.0',
        'hmc_tokens_total{level="h6",model="en-de",side="target"} 8.0',
        'hmc_queue_seconds_count{level="h6",model="en-de"} 1.0',
        'hmc_compute_seconds_bucket{le="0.0025",level="h6",model="en-de"} 1.0',
        'hmc_pending_texts{level="full",model="en-de"} 0.0',
    ):
        assert expected in lines
