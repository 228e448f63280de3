"""Loads that several processes send together."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.serving.fakes import FakeFactory, write_bundle

from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.benchmark.load import server_load
from hmc.benchmark.load.results import LatencyObjective
from hmc.benchmark.load.senders import LoadTarget, Senders
from hmc.benchmark.load.server_load import LoadSettings, load_server
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

ANY_TIME = LatencyObjective(600_000.0)
TEXTS = tuple(f"text {n}" for n in range(40))


def target(address: str, **more: object) -> LoadTarget:
    found = LoadTarget(address, TEXTS, "h6", 1, 60.0, connections=2, token=None, tls_ca=None)
    return replace(found, **more)  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path, factory: FakeFactory) -> BackgroundServer:
    return BackgroundServer(write_bundle(tmp_path), ServerSettings(port=0), factory)


def test_processes_send_each_call_once(
    server: BackgroundServer, factory: FakeFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))

    async def run(address: str) -> tuple[int, int, set[str]]:
        async with Senders(target(address)) as senders:
            assert await senders.grow()
            assert not await senders.grow()  # there are two cores
            ran = await senders.run([n / 100 for n in range(len(TEXTS))], ANY_TIME)
            return senders.processes, ran.processes, {call.outcome for call in ran.calls}

    with server:
        assert asyncio.run(run(server.address)) == (2, 2, {"answered"})
        texts = Counter(factory["h6"].texts)
    texts["text 0"] -= 2  # the first call of each process, which is none of the load
    assert texts == Counter(TEXTS)


def test_a_busy_client_gets_more_processes_and_is_named(
    server: BackgroundServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    monkeypatch.setattr(server_load, "BUSY_SHARE", -1.0)
    said: list[str] = []
    settings = LoadSettings(level="h6", beam=1, rates=(40.0,), seconds=0.5, objective=ANY_TIME)
    with server:
        curve = asyncio.run(load_server(server.address, TEXTS, settings, said.append))
    [point] = curve.points
    assert point.processes == 2
    assert any("again with 2 processes" in line for line in said)
    busy = replace(curve, points=(replace(point, client_share=0.93),))
    assert any("the client was the limit at" in note and "(2) took 93% of a core" in note for note in busy.notes)
    assert not any("the client" in note for note in replace(curve, points=(replace(point, client_share=0.3),)).notes)


def test_a_process_that_cannot_send_says_why(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))

    async def run(address: str) -> None:
        async with Senders(target(address)) as senders:
            senders._target = target(address, level="no such level")
            await senders.grow()

    with server, pytest.raises(HmcError, match=r"a process of the client cannot send: .*no such level"):
        asyncio.run(run(server.address))


def test_the_first_error_is_raised(server: BackgroundServer) -> None:
    async def run(address: str) -> None:
        async with Senders(target(address, beam=99)):
            pass

    with server, pytest.raises(InvalidRequestError, match="beam_size"):
        asyncio.run(run(server.address))
