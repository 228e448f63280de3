"""A server that answers as a test writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.serving.client.scripted import Script, ScriptedServer


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def server(script: Script) -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as running:
        yield running
