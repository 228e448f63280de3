"""The command in this process, and a real server for it to talk to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.serving.fakes import FakeFactory, write_bundle
from typer.testing import CliRunner, Result

from hmc.cli.main import build
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

Hmc = Callable[..., Result]
REPOSITORY = Path(__file__).resolve().parents[2]


def environment() -> dict[str, str]:
    """For `hmc` as a process of its own."""
    roots = [str(path.parent) for path in REPOSITORY.glob("*/hmc")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}


@pytest.fixture
def hmc() -> Hmc:
    """Runs `hmc ARGUMENTS…`, optionally with bytes on stdin."""

    def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
        return CliRunner().invoke(build(), [str(a) for a in arguments], input=stdin, env={"COLUMNS": "200"})

    return run


@pytest.fixture
def fake_bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def factory() -> FakeFactory:
    return FakeFactory()


@pytest.fixture
def server(fake_bundle: Path, factory: FakeFactory) -> Iterator[BackgroundServer]:
    with BackgroundServer(fake_bundle, ServerSettings(port=0), factory) as running:
        yield running
