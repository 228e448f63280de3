"""Processes for runs of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.forks import Forks, forking


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Forks processes that have loaded the libraries of training."""
    with forking() as started:
        yield started
