"""A real server on a real socket, with fake translators behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.serving.fakes import FakeFactory, write_bundle

from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2_grpc as rpc


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def server(bundle: Path, factory: FakeFactory) -> Iterator[BackgroundServer]:
    """All levels loaded, at most ten texts in a call, and a drain that is longer than any test."""
    settings = ServerSettings(port=0, max_texts=10, stream_window=4, drain_seconds=60.0)
    with BackgroundServer(bundle, settings, factory) as running:
        yield running


@pytest.fixture
def client(server: BackgroundServer) -> Iterator[Client]:
    with Client(server.address) as connected:
        yield connected


@pytest.fixture
def channel(server: BackgroundServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as opened:
        yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return rpc.TranslationServiceStub(channel)
