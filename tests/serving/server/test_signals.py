"""How a process that serves ends: by signals, while it serves and while it loads, and if it cannot announce itself."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.serving.fakes import FakeFactory, eventually

from hmc.artifact import HmcError
from hmc.engine.runtime.threads import SWITCH_S
from hmc.serving.client import Client
from hmc.serving.levels.host import ModelHost
from hmc.serving.server.app import Server, open_models
from hmc.serving.server.run import serve
from hmc.serving.server.settings import ServerSettings

GUARD_S = 600.0
"""Seconds after which a server that does not end fails its test."""


def run(server_of: Callable[[], Server], ready: Callable[[Server], None]) -> bool:
    """Serves until signals stop it. Returns what `serve` does."""

    async def main() -> bool:
        return await asyncio.wait_for(serve(server_of(), ready), GUARD_S)

    return asyncio.run(main())


def made(bundle: Path, factory: FakeFactory, **settings: float) -> Callable[[], Server]:
    """Makes a server with these settings; call it on the event loop."""
    chosen = ServerSettings(port=0, **settings)  # type: ignore[arg-type]  # each of its own type
    models = open_models({"": bundle}, chosen, factory)
    return lambda: Server(models, chosen)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_server_that_cannot_announce_itself_stops(bundle: Path, factory: FakeFactory) -> None:
    def ready(_: Server) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(made(bundle, factory), ready)
    assert {t.closed for t in factory.made} == {"cancelled"}


@pytest.mark.usefixtures("own_collector")
def test_while_it_serves_neither_the_collector_nor_other_threads_hold_up_calls(
    bundle: Path, factory: FakeFactory
) -> None:
    """A full collection of all that a server has loaded takes 0.1 seconds, in which nothing is answered. And a call
    waits for other threads' computing each time that it takes Python's lock."""
    seen: list[tuple[int, int]] = []
    usual_s = sys.getswitchinterval()

    def ready(_: Server) -> None:
        seen.append((gc.get_freeze_count(), len(gc.get_objects())))
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S) != usual_s
        signal.raise_signal(signal.SIGTERM)

    assert run(made(bundle, factory), ready)
    ((frozen, watched),) = seen
    assert frozen > 20 * watched
    assert (gc.get_freeze_count(), sys.getswitchinterval()) == (0, usual_s)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(bundle: Path, factory: FakeFactory, number: signal.Signals) -> None:
    answered: list[str] = []
    threads: list[threading.Thread] = []

    def ready(server: Server) -> None:
        def call() -> None:
            with Client(server.address) as client:
                answered.append(client.translate(["hold"])[0].text)

        def interrupt() -> None:
            factory["full"].wait_for(lambda: factory["full"].pending == 1)
            signal.raise_signal(number)
            eventually(lambda: server.draining)
            factory["full"].release.set()

        threads.extend((in_thread(call), in_thread(interrupt)))

    assert run(made(bundle, factory), ready)
    for thread in threads:
        thread.join(GUARD_S)
    assert answered == ["full:hold"]


def test_a_second_signal_does_not_wait_for_the_drain(bundle: Path, factory: FakeFactory) -> None:
    """The running call is never answered. It is cancelled long before the time of the drain is over."""
    errors: list[HmcError] = []
    threads: list[threading.Thread] = []

    def ready(server: Server) -> None:
        def call() -> None:
            with Client(server.address) as client:
                try:
                    client.translate(["hold"])
                except HmcError as error:
                    errors.append(error)

        def interrupt() -> None:
            factory["full"].wait_for(lambda: factory["full"].pending == 1)
            signal.raise_signal(signal.SIGTERM)
            eventually(lambda: server.draining)
            signal.raise_signal(signal.SIGTERM)

        threads.extend((in_thread(call), in_thread(interrupt)))

    assert run(made(bundle, factory, drain_seconds=100 * GUARD_S), ready)
    for thread in threads:
        thread.join(GUARD_S)
    assert len(errors) == 1
    assert factory["full"].futures[0].cancelled()


def test_a_signal_while_levels_load_ends_the_start(bundle: Path, factory: FakeFactory) -> None:
    held = factory.hold_at["h12"] = threading.Event()
    announced: list[Server] = []
    servers: list[Server] = []
    new_server = made(bundle, factory)

    def server_of() -> Server:
        servers.append(new_server())
        return servers[0]

    def interrupt() -> None:
        factory.wait_for(lambda: factory.asked == ["full", "h12"])
        signal.raise_signal(signal.SIGTERM)
        eventually(lambda: servers[0].draining)
        held.set()

    thread = in_thread(interrupt)
    assert run(server_of, announced.append)
    thread.join(GUARD_S)
    assert announced == []
    assert factory.asked == ["full", "h12"]  # and not h6
    assert {t.closed for t in factory.made} == {"cancelled"}


def test_a_second_signal_does_not_wait_for_the_level_that_loads(bundle: Path, factory: FakeFactory) -> None:
    held = factory.hold_at["full"] = threading.Event()
    settings = ServerSettings(port=0)
    models = open_models({"": bundle}, settings, factory)

    async def main() -> None:
        server = Server(models, settings)

        def interrupt() -> None:
            factory.wait_for(lambda: factory.asked == ["full"])
            signal.raise_signal(signal.SIGTERM)
            eventually(lambda: server.draining)
            signal.raise_signal(signal.SIGTERM)

        in_thread(interrupt)
        assert await asyncio.wait_for(serve(server, lambda _: None), GUARD_S) is False
        assert factory.made == []
        held.set()  # asyncio waits for its threads

    asyncio.run(main())


def changing(host: ModelHost) -> bool:
    """Whether another thread loads levels of the host."""
    free = host._changing.acquire(blocking=False)
    if free:
        host._changing.release()
    return not free


def test_calls_at_a_level_that_serves_are_finished_when_the_start_is_given_up(
    bundle: Path, factory: FakeFactory
) -> None:
    held = factory.hold_at["h12"] = threading.Event()
    settings = ServerSettings(port=0, drain_seconds=GUARD_S)
    models = open_models({"": bundle}, settings, factory)
    answered: list[str] = []

    async def main() -> None:
        server = Server(models, settings)
        serving = asyncio.create_task(serve(server, lambda _: None))
        await asyncio.to_thread(factory.wait_for, lambda: factory.asked == ["full", "h12"])

        def call() -> None:
            with Client(server.address) as client:
                answered.append(client.translate(["hold"])[0].text)

        calling = asyncio.create_task(asyncio.to_thread(call))
        await asyncio.to_thread(factory["full"].wait_for, lambda: factory["full"].pending == 1)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.to_thread(eventually, lambda: server.draining)
        held.set()
        await asyncio.to_thread(eventually, lambda: not changing(models.first))  # the start has ended
        assert factory["full"].closed == ""
        factory["full"].release.set()
        await calling
        assert await serving

    asyncio.run(main())
    assert answered == ["full:hold"]
