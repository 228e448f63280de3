"""Errors of a server's work in the background: logged, counted, and tried again; and the server still stops."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from tests.serving.certificates import make_certificate
from tests.serving.fakes import FakeFactory, eventually, write_bundle

from hmc.artifact.errors import OverloadedError
from hmc.serving.client import Client
from hmc.serving.levels.host import ModelHost
from hmc.serving.server import upkeep
from hmc.serving.server.access.certificates import Watched
from hmc.serving.server.access.tokens import line_of
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.health import Health
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.upkeep import BundleWatch, Upkeep

SOON_S = 0.001
WORKS: dict[str, tuple[type, str]] = {
    "tokens": (Watched, "refresh"),
    "certificates": (Watched, "refresh"),
    "health": (Health, "refresh"),
    "bundle en-de": (BundleWatch, "look"),
    "idle levels": (ModelHost, "unload_idle"),
}


def errors_of(server: BackgroundServer, work: str) -> float:
    assert server.server is not None
    return server.server.registry.get_sample_value("hmc_background_errors_total", {"work": work}) or 0.0


def settings_of(folder: Path) -> ServerSettings:
    """With every work in the background."""
    tokens = folder / "tokens.toml"
    tokens.write_text(line_of("root", "of-root", ["translate", "admin"], {}))
    cert, key = make_certificate(folder)
    return ServerSettings(
        port=0, http_port=0, metrics_port=0, tokens=tokens, tls_cert=cert, tls_key=key, watch=SOON_S, lazy=True,
        idle_unload=4 * SOON_S, drain_seconds=60.0,
    )  # fmt: skip


@pytest.mark.parametrize("work", ["tokens", "certificates"])
def test_a_file_that_cannot_be_used_is_counted_once(
    tmp_path: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    monkeypatch.setattr("hmc.serving.server.app.FILES_CHECK_S", SOON_S)
    settings = settings_of(tmp_path)
    with BackgroundServer(write_bundle(tmp_path / "bundle"), settings, factory) as server:
        assert errors_of(server, work) == 0.0
        file = settings.tokens if work == "tokens" else settings.tls_cert
        assert file is not None
        file.write_text("no such file")
        eventually(lambda: errors_of(server, work) == 1.0)


@pytest.mark.parametrize("work", WORKS)
def test_an_error_is_counted_and_the_server_translates_and_stops(
    tmp_path: Path, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, work: str
) -> None:
    settings = settings_of(tmp_path)
    calls, broken = threading.Semaphore(0), threading.Event()
    kind, name = WORKS[work]
    real = getattr(kind, name)

    def failing(*args: Any) -> Any:
        if broken.is_set():
            calls.release()
            raise RuntimeError("a bug")
        return real(*args)

    monkeypatch.setattr(kind, name, failing)
    monkeypatch.setattr(upkeep, "LONGEST_WAIT_S", SOON_S)
    monkeypatch.setattr("hmc.serving.server.app.FILES_CHECK_S", SOON_S)
    monkeypatch.setattr("hmc.serving.server.app.FAILURE_CHECK_S", SOON_S)
    with BackgroundServer(write_bundle(tmp_path / "bundle"), settings, factory) as running:
        assert errors_of(running, work) == 0.0
        broken.set()
        for _ in range(3):
            assert calls.acquire(timeout=600), "it is not tried again"
        eventually(lambda: errors_of(running, work) >= 3)
        assert settings.tls_cert is not None
        with Client(running.address, token="of-root", tls_ca=settings.tls_cert) as client:
            assert client.translate(["a"])[0].text == "full:a"
    assert all(translator.closed for translator in factory.made)
    assert any(f"background work '{work}' failed" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("part", ["_listener", "_health", "_upkeep", "_metrics_server", "_grpc"])
def test_the_models_are_closed_whatever_fails_at_the_stop(tmp_path: Path, factory: FakeFactory, part: str) -> None:
    ways = {"_health": "enter_graceful_shutdown", "_upkeep": "end", "_metrics_server": "server_close"}
    running = BackgroundServer(write_bundle(tmp_path / "bundle"), settings_of(tmp_path), factory)
    running.__enter__()
    held: Any = getattr(running.server, part)
    real = getattr(held, ways.get(part, "stop"))

    def fail(*args: Any) -> Any:
        result = real(*args)
        if not asyncio.iscoroutine(result) and part != "_grpc":
            raise RuntimeError("a bug")
        return then_fail(result)

    async def then_fail(result: Any) -> None:
        await result
        raise RuntimeError("a bug")

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return fail if name == ways.get(part, "stop") else getattr(held, name)

    server: Any = running.server
    setattr(server, part, Broken())
    if part == "_grpc":
        server._servers[0] = server._grpc
    with pytest.raises(RuntimeError, match="a bug"):
        running.stop()
    assert factory.made
    assert all(translator.closed for translator in factory.made)


def test_waits_grow_while_it_fails_and_begin_anew_when_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    outcomes: list[Exception | None] = [
        None,
        RuntimeError("a"),
        OverloadedError("b"),
        *[RuntimeError("c")] * 4,
        None,
        None,
    ]
    registry = CollectorRegistry()
    closing = asyncio.Event()

    async def work() -> None:
        outcome = outcomes.pop(0)
        if not outcomes:
            closing.set()
        if outcome is not None:
            raise outcome

    async def at_once(waiting: Any, seconds: float) -> None:
        waiting.close()
        waits.append(seconds)

    async def main() -> None:
        works = Upkeep(closing, Counter("errors", "", ["work"], registry=registry))
        monkeypatch.setattr(asyncio, "wait_for", at_once)
        works.repeat("a work", work, 1.0)
        await closing.wait()
        await works.end()

    asyncio.run(main())
    assert waits[:8] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 1.0]
    assert registry.get_sample_value("errors_total", {"work": "a work"}) == 6


def test_a_watched_bundle_is_tried_again_when_memory_was_short(
    tmp_path: Path, factory: FakeFactory, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    with BackgroundServer(bundle, ServerSettings(port=0, watch=SOON_S), factory) as running:
        factory.fail["full"] = OverloadedError("level 'full' needs memory; try again later")
        with caplog.at_level(logging.ERROR):
            (bundle / "bundle.json").unlink()
            write_bundle(bundle, version="fedcba9876543210")
            eventually(lambda: errors_of(running, "bundle en-de") >= 2)
        assert running.host.version == "0123456789abcdef"
        factory.fail.clear()
        eventually(lambda: running.host.version == "fedcba9876543210", 30)
    assert any("try again later" in record.getMessage() for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records if "try again later" in record.getMessage())
