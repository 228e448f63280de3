"""A bundle of fake levels."""

from pathlib import Path

import pytest
from tests.serving.fakes import write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")
