"""A load on a real server, in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from tests.conftest import FEW

from hmc.artifact import HmcError, InvalidRequestError
from hmc.artifact.errors import LevelNotFoundError, UnavailableError
from hmc.benchmark.load.results import LatencyObjective
from hmc.benchmark.load.server_load import LoadSettings, load_server, own_server
from hmc.serving.client import Client


def test_calls_are_answered_by_the_level_asked_for(tiny_bundle: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("".join(f"{n / 50}\n" for n in range(20)))
    settings = LoadSettings(level="h5", beam=1, trace=trace, objective=LatencyObjective(60_000.0), connections=2)
    with own_server(tiny_bundle, ["h5"], device="cpu", threads=1) as address:
        curve = asyncio.run(load_server(address, list(FEW), settings))
        with pytest.raises(LevelNotFoundError, match="h7"):
            asyncio.run(load_server(address, list(FEW), LoadSettings(level="h7")))
        at_random = LoadSettings(level="h5", beam=1, rates=(40.0,), seconds=1.0, objective=LatencyObjective(60_000.0))
        [rate] = asyncio.run(load_server(address, list(FEW), at_random)).points
    [point] = curve.points
    assert (point.calls, point.answered, point.levels, point.held) == (20, 20, {"h5": 20}, True)
    assert (curve.arrivals, curve.saturation) == ("trace", point.rate)
    assert len(point.samples) == 20
    assert (rate.rate, rate.due) == (
        rate.calls,
        rate.calls,
    )  # in one second


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with pytest.raises(HmcError, match=r"did not start: .*bundle\.json is missing"), own_server(tmp_path, ["full"]):
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"threads": -1}, "did not start: .*threads"), ({"no_such": 1}, "did not start: .*no_such")],
)
def test_settings_that_the_server_refuses(tiny_bundle: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(HmcError, match=message) as told, own_server(tiny_bundle, ["h5"], **settings):
        pass
    assert "pydantic" not in str(told.value)


def test_a_server_that_was_killed_is_named(tiny_bundle: Path) -> None:
    before = set(psutil.Process().children())

    def lose_it() -> None:
        with own_server(tiny_bundle, ["h5"], device="cpu", threads=1):
            [server] = set(psutil.Process().children()) - before
            server.kill()
            raise UnavailableError("no server answers")

    with pytest.raises(HmcError, match="was killed by SIGKILL, often because memory ran out"):
        lose_it()


def test_a_server_that_logs_much_goes_on(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own log of a call is longer than a pipe that nobody reads."""
    monkeypatch.setenv("GRPC_VERBOSITY", "debug")
    monkeypatch.setenv("GRPC_TRACE", "http")
    with own_server(tiny_bundle, ["h5"], device="cpu", threads=1) as address, Client(address) as client:
        client.wait_ready()
        for _ in range(20):
            assert client.translate(list(FEW)[:1], timeout=60)[0].text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seconds": 0.0}, "seconds 0: choose a number above 0"),
        ({"rates": (10.0, -1.0)}, "rate -1: choose a number above 0"),
        ({"objective": LatencyObjective(100.0, 1.5)}, "share 1.5: choose a number above 0, and at most 1"),
        ({"connections": 0}, "connections 0: choose 1 or more"),
        ({"rates": (1.0,), "trace": Path("x")}, "a trace has its own times"),
    ],
)
def test_settings_out_of_range(changed: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        LoadSettings(**changed)  # type: ignore[arg-type]  # wrong on purpose
