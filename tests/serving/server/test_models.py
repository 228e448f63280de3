"""Two models in one server, on a real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.serving.fakes import GUARD_S, FakeFactory, eventually, failure, wait_for, write_bundle
from tests.support.metrics import metrics_of

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError, LevelNotFoundError
from hmc.serving import Selector
from hmc.serving.client import Client, ModelInfo
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICE = "hmc.v1.TranslationService"


@pytest.fixture
def bundles(tmp_path: Path) -> dict[str, Path]:
    return {
        "en-de": write_bundle(tmp_path / "a", version="german"),
        "fr-en": write_bundle(tmp_path / "b", version="english", languages=("fr", "en")),
    }


@pytest.fixture
def server(bundles: dict[str, Path], factory: FakeFactory) -> Iterator[BackgroundServer]:
    settings = ServerSettings(port=0, drain_seconds=60.0, metrics_port=0)
    with BackgroundServer(bundles, settings, factory) as running:
        yield running


@pytest.fixture
def lazy(bundles: dict[str, Path], factory: FakeFactory) -> Iterator[Client]:
    with (
        BackgroundServer(bundles, ServerSettings(port=0, lazy=True), factory) as running,
        Client(running.address) as connected,
    ):
        yield connected


def check(channel: grpc.Channel, service: str) -> int:
    health: Any = health_pb2_grpc.HealthStub(channel)
    return int(health.Check(health_pb2.HealthCheckRequest(service=service)).status)


def test_every_call_finds_its_model(client: Client) -> None:
    assert client.translate(["a"]).bundle_version == "german"
    assert client.translate(["a"], model="fr-en").bundle_version == "english"
    assert client.translate(["a"], "h6", source_language="fra").bundle_version == "english"
    assert client.translate(["a"], Selector(max_heads=6, target_language="en")).level == "h6"
    assert client.score(["a"], ["b"], target_language="en").bundle_version == "english"
    answers = list(client.translate_stream(["a", "b"], "h12", model="fr-en"))
    assert [(a.level, a.bundle_version) for a in answers] == [("h12", "english")] * 2
    assert [p.text for p in client.translate_tokens("a", "h6", model="fr-en")][:-1] == ["h6", ":", "a"]
    with pytest.raises(LevelNotFoundError, match="from any language to it; this server has en-de"):
        client.translate(["a"], target_language="it")
    with pytest.raises(InvalidRequestError, match="target_language is no language tag"):
        client.translate(["a"], target_language="x y")
    with pytest.raises(LevelNotFoundError, match="unknown model 'x'; this server has: en-de, fr-en"):
        next(client.translate_stream(["a"], model="x")).result()


def test_each_text_of_a_stream_chooses_its_model(stub: Any) -> None:
    from hmc.v1 import translation_pb2 as pb

    sent = [
        pb.TranslateStreamRequest(id=name, text="a", level=pb.LevelSelector(model=name))
        for name in ("en-de", "fr-en", "x")
    ]
    answers = {answer.id: answer for answer in stub.TranslateStream(iter(sent))}
    assert (answers["en-de"].bundle_version, answers["fr-en"].bundle_version) == ("german", "english")
    assert answers["x"].error.code == grpc.StatusCode.NOT_FOUND.value[0]


def test_models_and_their_levels_are_listed(client: Client) -> None:
    assert client.models() == (
        ModelInfo("en-de", "en", ("de",), "german", 3),
        ModelInfo("fr-en", "fr", ("en",), "english", 3),
    )
    client.unload_level("h6", model="fr-en")
    assert [model.loaded_levels for model in client.models()] == [3, 2]
    assert [level.loaded for level in client.levels(model="fr-en").levels] == [True, True, False]
    assert [level.loaded for level in client.levels().levels] == [True, True, True]
    assert client.load_level("h6", model="fr-en").loaded
    for call in (
        lambda: client.levels(model="x"),
        lambda: client.load_level("h6", model="x"),
        lambda: client.unload_level("h6", model="x"),
        lambda: client.set_default_level("h6", model="x"),
        lambda: client.reload(model="x"),
    ):
        with pytest.raises(LevelNotFoundError, match="unknown model 'x'"):
            call()


def test_another_level_becomes_the_default_one(client: Client) -> None:
    assert client.set_default_level("h6", model="fr-en").is_default
    assert client.translate(["a"], model="fr-en").level == "h6"
    assert client.translate(["a"]).level == "full"
    assert client.unload_level("full", model="fr-en").loaded is False
    with pytest.raises(FailedPreconditionError, match="'full' is not loaded"):
        client.set_default_level("full", model="fr-en")
    client.reload(model="fr-en")
    assert client.translate(["a"], model="fr-en").level == "full"


def test_lazy_models_load_with_their_first_request(lazy: Client) -> None:
    assert [model.loaded_levels for model in lazy.models()] == [1, 0]
    assert lazy.translate(["a"], target_language="en")[0].text == "full:a"
    assert lazy.translate(["a"], Selector(max_heads=6, model="fr-en")).level == "h6"
    assert [model.loaded_levels for model in lazy.models()] == [1, 2]


def test_idle_levels_are_unloaded_by_themselves(bundles: dict[str, Path], factory: FakeFactory) -> None:
    settings = ServerSettings(port=0, lazy=True, idle_unload=0.01)
    with BackgroundServer(bundles, settings, factory) as running, Client(running.address) as client:
        for _ in range(3):
            assert client.translate(["a"], model="fr-en")[0].text == "full:a"
            eventually(lambda: [model.loaded_levels for model in client.models()] == [1, 0])
        assert client.translate(["a"])[0].text == "full:a"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"idle_unload": 5.0}, "idle_unload needs lazy"),
        ({"idle_unload": 0.0, "lazy": True}, "idle_unload 0.0: choose more than 0"),
        ({"memory": "80%"}, "memory '80%': write bytes"),
        ({"memory": "much"}, "memory 'much': write bytes"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        ServerSettings(**settings)


# ---- health ----


def test_the_health_of_models_and_levels(server: BackgroundServer, client: Client, factory: FakeFactory) -> None:
    german, english = factory.made[:3], factory.made[3:]
    with grpc.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=f"{SERVICE}/fr-en/h6"), timeout=30)
        assert next(watch).status == SERVING
        client.unload_level("h6", model="fr-en")
        assert check(channel, f"{SERVICE}/fr-en/h6") == NOT_SERVING
        assert next(watch).status == NOT_SERVING
        assert check(channel, f"{SERVICE}/fr-en") == check(channel, f"{SERVICE}/en-de/h6") == SERVING
        english[0].failure = "stopped"
        assert check(channel, f"{SERVICE}/fr-en/full") == check(channel, f"{SERVICE}/fr-en") == NOT_SERVING
        assert check(channel, "") == check(channel, SERVICE) == NOT_SERVING
        assert check(channel, f"{SERVICE}/en-de") == check(channel, "hmc.v1.AdminService") == SERVING
        english[0].failure = None
        german[1].failure = "stopped"
        assert check(channel, "") == SERVING
        assert check(channel, f"{SERVICE}/en-de/h12") == NOT_SERVING
        assert failure(lambda: check(channel, f"{SERVICE}/x"))[0] == "NOT_FOUND"
        watch.cancel()


def test_a_level_that_a_reload_removes_becomes_unknown(
    server: BackgroundServer, client: Client, bundles: dict[str, Path], tmp_path: Path
) -> None:
    with grpc.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=f"{SERVICE}/fr-en/h6"), timeout=30)
        assert next(watch).status == SERVING
        client.reload(write_bundle(tmp_path / "new", levels=("full", "h12")), model="fr-en")
        assert next(watch).status == UNKNOWN
        assert failure(lambda: check(channel, f"{SERVICE}/fr-en/h6"))[0] == "NOT_FOUND"
        client.reload(bundles["fr-en"], model="fr-en")
        client.load_level("h6", model="fr-en")
        assert check(channel, f"{SERVICE}/fr-en/h6") == SERVING
        watch.cancel()


def test_models_that_are_not_loaded_yet_do_not_count(lazy: Client) -> None:
    with grpc.insecure_channel(lazy.address) as channel:
        assert check(channel, "") == SERVING
        assert check(channel, f"{SERVICE}/fr-en") == NOT_SERVING
        lazy.translate(["a"], model="fr-en")
        assert check(channel, f"{SERVICE}/fr-en") == SERVING


# ---- metrics, reload ----


def test_metrics_name_the_model(server: BackgroundServer, client: Client) -> None:
    client.translate(["a"], "h6", model="fr-en")
    client.translate(["a"], "h6")
    lines = metrics_of(server).splitlines()
    for model in ("en-de", "fr-en"):
        assert f'hmc_requests_total{{code="OK",level="h6",model="{model}"}} 1.0' in lines
        assert f'hmc_pending_texts{{level="full",model="{model}"}} 0.0' in lines
        assert f'hmc_memory_bytes{{level="h6",model="{model}",part="own"}} 20.0' in lines


def test_reloads_of_two_models_lose_no_request(client: Client, factory: FakeFactory, tmp_path: Path) -> None:
    versions = {
        model: [
            write_bundle(tmp_path / f"{model}-{n}", f"{model}-{n}", ("full", "h12"), languages=pair) for n in (1, 2)
        ]
        for model, pair in {"en-de": ("en", "de"), "fr-en": ("fr", "en")}.items()
    }
    seen, changed, stop = set[tuple[str, str]](), threading.Condition(), threading.Event()

    def load(model: str) -> None:
        while not stop.is_set():
            answer = client.translate(["a", "b"], Selector(max_heads=12, model=model))
            assert [t.text for t in answer] == ["h12:a", "h12:b"]
            with changed:
                seen.add((model, answer.bundle_version))
                changed.notify_all()

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, model) for model in versions for _ in range(2)]
        try:
            for number in (0, 1):
                for model, paths in versions.items():
                    assert client.reload(paths[number], model=model) == paths[number].name
                    wait_for(changed, lambda: (model, paths[number].name) in seen, 60)  # noqa: B023 - called here
        finally:
            stop.set()
        for done in loads:
            done.result(GUARD_S)
    reloaded = {(model, path.name) for model, paths in versions.items() for path in paths}
    assert seen - {("en-de", "german"), ("fr-en", "english")} == reloaded
    eventually(lambda: sum(t.closed == "drained" for t in factory.made) == len(factory.made) - 4)
