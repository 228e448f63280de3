"""`hmc health`: an exit status that says whether a server serves."""

from __future__ import annotations

import json
from functools import partialmethod
from pathlib import Path

import pytest
from tests.cli.conftest import Hmc
from tests.command import refused
from tests.serving.fakes import FakeFactory
from tests.serving.http.conftest import url_of

from hmc.cli.common.commands import TRY_AGAIN
from hmc.serving.client import AsyncClient
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings


def test_a_server_that_serves(hmc: Hmc, server: BackgroundServer) -> None:
    ran = hmc("health", "--server", server.address, "--timeout", "60")
    assert (ran.exit_code, ran.stdout) == (0, f"{server.address} is ready\n")
    ran = hmc("health", "--server", server.address, "--timeout", "60", "--json")
    assert json.loads(ran.stdout) == {"address": server.address, "status": "SERVING"}


def test_a_server_that_does_not_serve(hmc: Hmc, server: BackgroundServer, factory: FakeFactory) -> None:
    factory["full"].failure = "stopped"
    ran = hmc("health", "--server", server.address, "--timeout", "1")
    assert ran.exit_code == TRY_AGAIN
    assert f"{server.address} is not ready after 1 s: its health is not SERVING yet" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--timeout", "0"), "--timeout 0: choose more than 0 seconds"),
        (("--server", "localhost"), "localhost"),
    ],
)
def test_what_stands_in_the_way_is_said(hmc: Hmc, arguments: tuple[str, ...], said: str) -> None:
    refused(hmc("health", *arguments), said)


@pytest.mark.parametrize(
    "words",
    [
        ("health", "--timeout", "0.5"),
        ("levels",),
        ("translate", "a"),
        ("admin", "status"),
        ("admin", "unload", "full"),
        ("score", __file__, __file__),
        ("bench", "load", "--source", __file__, "--rate", "1", "--seconds", "1"),
    ],
)
def test_a_server_that_is_down_is_no_wrong_command(
    hmc: Hmc, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts try the first again, and never the second."""
    monkeypatch.setattr(AsyncClient, "wait_ready", partialmethod(AsyncClient.wait_ready, timeout=0.5))  # of 60 s
    ran = hmc(*words, "--server", "localhost:1")
    assert ran.exit_code == TRY_AGAIN, ran.output
    assert "localhost:1: nothing answers there; is `hmc serve` running there" in ran.stderr
    refused(hmc(*words, "--server", "localhost:1", "--no-such-option"), "No such option: --no-such-option")
    refused(hmc(*words, "--server", "localhost"), "localhost")


def test_the_port_of_http_is_told_apart(hmc: Hmc, fake_bundle: Path, factory: FakeFactory) -> None:
    with BackgroundServer(fake_bundle, ServerSettings(port=0, http_port=0), factory) as running:
        address = url_of(running).removeprefix("http://")
        for command in (("health", "--timeout", "3"), ("levels",), ("translate", "a")):
            ran = hmc(*command, "--server", address)
            assert ran.exit_code == 2
            assert f"{address} speaks HTTP, and this is a client of gRPC: give the port of gRPC" in ran.stderr
