"""A small corpus with lines that go wrong, and a level that translates it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import SENTENCES

from hmc.pipelines.bulk.engines import BulkLevel
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.serving import DecodeOptions

LINES = [f"{sentence[:-1]} {n}." for n in range(8) for sentence in SENTENCES]
BAD, EMPTY = 17, 30
"""Lines, counted from 1, that are not UTF-8 and empty."""
SETTINGS = BulkSettings(DecodeOptions(beam_size=1, max_length=12), output="jsonl", shard_lines=16)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 lines."""
    raw = [line.encode() for line in LINES]
    raw[BAD - 1], raw[EMPTY - 1] = b"caf\xe9", b""
    path = tmp_path_factory.mktemp("corpus") / "corpus.en"
    path.write_bytes(b"\n".join(raw) + b"\n")
    return path


@pytest.fixture(scope="session")
def level(tiny_bundle: Path) -> BulkLevel:
    return BulkLevel(tiny_bundle, "h12-int8", threads=1)
