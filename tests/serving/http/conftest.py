"""A real server with an HTTP listener, and fake translators behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.serving.fakes import GUARD_S, FakeFactory, write_bundle

from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

Serving = Callable[..., Any]

DEFAULT_TIMEOUT: httpx.Timeout = inspect.signature(httpx.get).parameters["timeout"].default
"""One object, which every call of httpx without a timeout reads: 5 s, which a busy machine may need."""
for each in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT, each, GUARD_S)


def url_of(running: BackgroundServer) -> str:
    """The address of the HTTP listener."""
    assert running.server is not None
    assert running.server.http_address is not None
    return running.server.http_address


@contextmanager
def serving(folder: Path, factory: FakeFactory, **settings: Any) -> Iterator[tuple[BackgroundServer, str]]:
    """A server of a new fake bundle, and its URL."""
    bundle = write_bundle(folder / "bundle")
    chosen = ServerSettings(**{"port": 0, "http_port": 0, "drain_seconds": 60.0, **settings})
    with BackgroundServer(bundle, chosen, factory) as running:
        yield running, url_of(running)


@pytest.fixture(scope="module")
def fakes() -> FakeFactory:
    return FakeFactory()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, fakes: FakeFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("http"), fakes, max_texts=10) as (_, address):
        yield address


@pytest.fixture(scope="module")
def web(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=600) as client:
        yield client
