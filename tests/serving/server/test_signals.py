"""How a process that serves ends: by signals, while it serves and while it loads, and where it cannot speak."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from tests.serving.fakes import FakeFactory, eventually

from hmc.artifact.errors import (
    HmcError,
)
from hmc.serving.client import Client
from hmc.serving.server.app import Server, model_host, serve
from hmc.serving.server.settings import ServerSettings

TRANSLATE = "/hmc.v1.TranslationService/Translate"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_server_that_cannot_say_so_stops(bundle: Path, factory: FakeFactory) -> None:
    async def run() -> None:
        settings = ServerSettings(port=0)
        await serve(Server(model_host(bundle, settings, factory), settings), tell)

    def tell(_: Server) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(run())
    assert {t.closed for t in factory.made} == {"cancelled"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(bundle: Path, factory: FakeFactory, number: signal.Signals) -> None:
    settings = ServerSettings(port=0)
    answered = []

    def ready(server: Server) -> None:
        def call() -> None:
            with Client(server.address) as client:
                answered.append(client.translate(["hold"])[0].text)

        thread = threading.Thread(target=call)
        thread.start()

        def interrupt() -> None:
            eventually(lambda: factory["full"].pending == 1)
            signal.raise_signal(number)
            time.sleep(0.1)
            factory["full"].release.set()
            thread.join()

        threading.Thread(target=interrupt).start()

    run_with_signals(bundle, factory, ready, settings)
    eventually(lambda: answered == ["full:hold"])


def run_with_signals(
    bundle: Path, factory: FakeFactory, ready: Callable[[Server], None], settings: ServerSettings
) -> float:
    """Serves until signals stop it; returns the seconds that took."""
    started = time.monotonic()

    async def run() -> None:
        assert await serve(Server(model_host(bundle, settings, factory), settings), ready)

    asyncio.run(run())
    return time.monotonic() - started


def test_a_second_signal_does_not_wait_for_the_drain(bundle: Path, factory: FakeFactory) -> None:
    ended = []

    def ready(server: Server) -> None:
        def call() -> None:
            with Client(server.address) as client:
                try:
                    client.translate(["hold"])
                except HmcError as error:
                    ended.append(error)

        def interrupt() -> None:
            eventually(lambda: factory["full"].pending == 1)
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.2)
            signal.raise_signal(signal.SIGTERM)

        threading.Thread(target=call).start()
        threading.Thread(target=interrupt).start()

    assert run_with_signals(bundle, factory, ready, ServerSettings(port=0, drain_seconds=30.0)) < 10.0
    eventually(lambda: len(ended) == 1)


def test_a_signal_while_levels_load_ends_the_start(bundle: Path, factory: FakeFactory) -> None:
    held = factory.hold_at["h12"] = threading.Event()
    announced: list[Server] = []

    def interrupt() -> None:
        eventually(lambda: factory.asked == ["full", "h12"])
        signal.raise_signal(signal.SIGTERM)
        eventually(lambda: "host stops" in said)
        held.set()

    said: list[str] = []
    settings = ServerSettings(port=0)
    host = model_host(bundle, settings, factory)
    stop_loading = host.stop_loading

    def stop() -> None:
        stop_loading()
        said.append("host stops")

    host.stop_loading = stop  # type: ignore[method-assign]
    threading.Thread(target=interrupt).start()

    async def run() -> None:
        assert await serve(Server(host, settings), announced.append)

    asyncio.run(run())
    assert announced == []
    assert factory.asked == ["full", "h12"]  # and not h6
    assert {t.closed for t in factory.made} == {"cancelled"}


def test_a_second_signal_does_not_wait_for_the_level_that_loads(bundle: Path, factory: FakeFactory) -> None:
    held = factory.hold_at["full"] = threading.Event()
    settings = ServerSettings(port=0)

    def interrupt() -> None:
        eventually(lambda: factory.asked == ["full"])
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            time.sleep(0.1)

    threading.Thread(target=interrupt).start()

    async def run() -> None:
        ended = await serve(Server(model_host(bundle, settings, factory), settings), lambda _: None)
        assert ended is False
        assert factory.made == []
        held.set()  # asyncio waits for its threads

    asyncio.run(run())


def test_calls_at_a_level_that_serves_are_finished_when_the_start_is_given_up(
    bundle: Path, factory: FakeFactory
) -> None:
    held = factory.hold_at["h12"] = threading.Event()
    settings = ServerSettings(port=0, drain_seconds=10.0)
    answered: list[str] = []

    async def run() -> None:
        server = Server(model_host(bundle, settings, factory), settings)
        serving = asyncio.create_task(serve(server, lambda _: None))
        await asyncio.to_thread(eventually, lambda: factory.asked == ["full", "h12"])

        def call() -> None:
            with Client(server.address) as client:
                answered.append(client.translate(["hold"])[0].text)

        calling = asyncio.create_task(asyncio.to_thread(call))
        await asyncio.to_thread(eventually, lambda: factory["full"].pending == 1)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.1)
        held.set()
        await asyncio.sleep(0.1)
        factory["full"].release.set()
        await calling
        assert await serving

    asyncio.run(run())
    assert answered == ["full:hold"]
