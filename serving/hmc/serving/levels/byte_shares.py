"""Splits the bytes of levels into those of each level alone and those that it shares with another level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from hmc.artifact.bundle.manifest import Manifest
from hmc.serving.requests.results import LevelBytes

FileBytes = Mapping[str, int]
"""File → bytes of it that a level holds, on disk or in memory."""


def byte_shares(levels: Mapping[str, FileBytes]) -> dict[str, LevelBytes]:
    """Level name → its bytes, split. A file is shared if at least two of the given levels hold it."""
    users = Counter(file for held in levels.values() for file in held)
    found = {}
    for name, held in levels.items():
        own = sum(size for file, size in held.items() if users[file] == 1)
        found[name] = LevelBytes(own, sum(held.values()) - own)
    return found


def union_bytes(levels: Iterable[FileBytes]) -> int:
    """Bytes that levels hold together: a file that several of them hold counts once, at its largest."""
    union: dict[str, int] = {}
    for held in levels:
        for file, size in held.items():
            union[file] = max(size, union.get(file, 0))
    return sum(union.values())


def disk_shares(bundle: Path, manifest: Manifest) -> dict[str, LevelBytes]:
    """Level name → its bytes on disk, split, for every level of a bundle. Raises OSError if a file is missing."""
    sizes = {file: (bundle / file).stat().st_size for level in manifest.levels for file in level.files}
    return byte_shares({level.name: {file: sizes[file] for file in level.files} for level in manifest.levels})
