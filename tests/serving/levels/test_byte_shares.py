"""The bytes of levels, split into their own and shared ones."""

from __future__ import annotations

from pathlib import Path

from hmc.artifact import read_manifest
from hmc.serving.client import LevelBytes
from hmc.serving.levels.byte_shares import byte_shares, disk_shares


def test_a_file_of_two_levels_is_shared() -> None:
    split = byte_shares(
        {"full": {"a": 1, "b": 10, "c": 100}, "half": {"b": 10, "c": 100, "d": 1000}, "other": {"c": 100}}
    )
    assert split == {"full": LevelBytes(1, 110), "half": LevelBytes(1000, 110), "other": LevelBytes(0, 100)}


def test_bytes_on_disk(lively_bundle: Path) -> None:
    manifest = read_manifest(lively_bundle)
    split = disk_shares(lively_bundle, manifest)
    for level in manifest.levels:
        assert split[level.name].own + split[level.name].shared == level.bytes
        assert 0 < split[level.name].own < level.bytes
    files = {file for level in manifest.levels for file in level.files}
    once = sum((lively_bundle / file).stat().st_size for file in files)
    assert sum(size.own for size in split.values()) < once < sum(level.bytes for level in manifest.levels)
