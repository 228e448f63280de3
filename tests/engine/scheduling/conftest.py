"""A level with real graphs, and an engine of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hmc.artifact import read_manifest
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine


@pytest.fixture
def sessions(lively_bundle: Path) -> LevelSessions:
    manifest = read_manifest(lively_bundle)
    return LevelSessions.open(lively_bundle, manifest.architecture, manifest.level("h12"), Device("cpu"), 1)


@pytest.fixture
def engine(sessions: LevelSessions) -> Iterator[Engine]:
    running = Engine(sessions, queue_size=100, max_rows=16)
    yield running
    running.close(drain=False)
