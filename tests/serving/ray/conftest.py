"""The fixtures of the plain server's tests, with Ray Serve behind them."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from tests.ports import held_port
from tests.processes import REPOSITORY, ROOTS
from tests.serving.fakes import write_bundle

from hmc.serving.client import Client
from hmc.v1 import translation_pb2_grpc as rpc


def ray_environment(ports: list[int]) -> dict[str, str]:
    """An environment in which Ray Serve shares no port with another one on this machine. ports: three free ones."""
    names = ("HAPROXY_METRICS", "HAPROXY_STATS", "HTTP")
    chosen = {f"RAY_SERVE_{name}_PORT": str(port) for name, port in zip(names, ports, strict=True)}
    return {**os.environ, **chosen, "PYTHONPATH": os.pathsep.join(map(str, [*ROOTS, REPOSITORY]))}


@pytest.fixture(scope="session")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray Serve with one replica."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install '.[ray]'")
    folder = tmp_path_factory.mktemp("ray")
    bundle = write_bundle(folder / "bundle")
    with ExitStack() as held, (folder / "log").open("wb") as log:
        port, *others = (held.enter_context(held_port()) for _ in range(4))
        command = [sys.executable, "-m", "tests.serving.ray.door", str(bundle), str(port), "1"]
        process = held.enter_context(
            subprocess.Popen(
                command, env=ray_environment(others), cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=log, text=True
            )
        )
        assert process.stdout is not None
        try:
            said = next((line for line in process.stdout if line.startswith("ready ")), "")
            assert said, (folder / "log").read_text()[-4000:]
            yield said.split()[1]
        finally:
            process.send_signal(signal.SIGTERM)


@pytest.fixture
def client(door: str) -> Iterator[Client]:
    with Client(door) as connected:
        yield connected


@pytest.fixture
def channel(door: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(door) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return rpc.TranslationServiceStub(channel)
