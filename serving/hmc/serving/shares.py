"""Bytes of levels, told apart: what a level has to itself, and what it shares with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hmc.artifact.bundle import Manifest

Held = Mapping[str, int]
"""File → bytes of it that a level holds, on disk or in memory."""


@dataclass(frozen=True)
class Shares:
    """Bytes of one level."""

    own: int
    """Of files that no other level has."""
    shared: int
    """Of files that other levels have too."""


def shares(levels: Mapping[str, Held]) -> dict[str, Shares]:
    """Levels by name → what of each one's bytes is its own, and what is shared."""
    users = Counter(file for held in levels.values() for file in held)
    found = {}
    for name, held in levels.items():
        own = sum(size for file, size in held.items() if users[file] == 1)
        found[name] = Shares(own, sum(held.values()) - own)
    return found


def disk_shares(bundle: Path, manifest: Manifest) -> dict[str, Shares]:
    """What every level of a bundle takes on disk, by name. Raises OSError where a file is missing."""
    sizes = {file: (bundle / file).stat().st_size for level in manifest.levels for file in level.files}
    return shares({level.name: {file: sizes[file] for file in level.files} for level in manifest.levels})
