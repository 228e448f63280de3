"""Fixtures of the tests of MarianMT directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.artifact.marian.opus import opus_directory


@pytest.fixture
def opus(tmp_path: Path) -> Path:
    """A tiny MarianMT directory in the layout of OPUS-MT, which a test may change."""
    opus_directory(tmp_path / "opus")
    return tmp_path / "opus"
