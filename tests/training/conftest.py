"""A model and a text that tests of runs only read."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.once import Once
from tests.support.files import write_pair
from tests.tiny import SENTENCES, tiny_checkpoint_at


@pytest.fixture(scope="session")
def folder(once: Once) -> Path:
    """A checkpoint `c` of 24 heads and 192 neurons, and a corpus `t` of sentences and their capitals."""
    return once(_learnable_at)


def _learnable_at(path: Path) -> None:
    tiny_checkpoint_at(path / "c")
    write_pair(path, SENTENCES * 2)
