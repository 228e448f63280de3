"""The memory of levels: bytes of each level alone and shared with others, and a bound of what all levels may hold."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.errors import FailedPreconditionError, MemoryInUseError
from hmc.artifact.precisions import PRECISIONS
from hmc.serving.requests.results import LevelBytes

log = logging.getLogger(__name__)

FileBytes = Mapping[str, int]
"""File → bytes of it that a level holds, on disk or in memory."""


def byte_shares(levels: Mapping[str, FileBytes]) -> dict[str, LevelBytes]:
    """Level name → its bytes, split. A file is shared if at least two of the given levels hold it."""
    users = Counter(file for files in levels.values() for file in files)
    shares = {}
    for name, files in levels.items():
        own = sum(size for file, size in files.items() if users[file] == 1)
        shares[name] = LevelBytes(own, sum(files.values()) - own)
    return shares


def union_bytes(levels: Iterable[FileBytes]) -> int:
    """Bytes that levels hold together: a file that several of them hold counts once, at its largest."""
    union: dict[str, int] = {}
    for files in levels:
        for file, size in files.items():
            union[file] = max(size, union.get(file, 0))
    return sum(union.values())


def disk_shares(bundle: Path, manifest: Manifest) -> dict[str, LevelBytes]:
    """Level name → its bytes on disk, split, for every level of a bundle. Raises OSError if a file is missing."""
    sizes = {file: (bundle / file).stat().st_size for level in manifest.levels for file in level.files}
    return byte_shares({level.name: {file: sizes[file] for file in level.files} for level in manifest.levels})


@dataclass(frozen=True)
class CacheEntry:
    """A loaded level as `Capacity` sees it. It does not refer to its translator, which may be freed meanwhile."""

    name: str
    """`MODEL/LEVEL`."""
    level: Level
    weights: FileBytes
    last_used: float = 0.0
    """When its last request ended, in seconds of the host's clock."""
    pinned: bool = True
    """Whether it stays loaded until an administrator unloads it."""
    in_use: bool = True
    """Whether requests use it, or wait for it."""
    evict: Callable[[], list[Future[None]]] = list
    """Takes it out of service if it is still idle. Returns futures that are done when it is free."""


class Capacity:
    """The memory of this machine that the levels of all models may hold with their weights.

    The hosts call it under the lock of their changes, which they share.
    """

    def __init__(self, limit: int | None = None, *, shared: bool = True) -> None:
        """limit: bytes; None: any number. shared: whether levels share the weights of equal files."""
        self.limit = limit
        self._shared = shared
        self._users: list[Callable[[], list[CacheEntry]]] = []
        self._measured: dict[tuple[str, str], FileBytes] = {}
        """(version of the bundle, level) → its weights when it was last loaded."""

    def join(self, entries: Callable[[], list[CacheEntry]]) -> None:
        """Adds a model. entries: returns its loaded levels."""
        self._users.append(entries)

    def clear(self, level: Level, bundle: Path, version: str, device: str, weights: FileBytes | None = None) -> None:
        """Evicts idle levels, least recently used first, until a level fits, and waits until they are free.

        bundle, version: of the level. device: where it will run, as in the settings. weights: of the level, once it is
        loaded. None: before. It then counts with the bytes that it had when it was last loaded, or at first with the
        bytes of its files.

        If evicting would not free enough memory, evicts nothing (unless requests take levels meanwhile), and raises
        FailedPreconditionError if the level fits beside none of the levels that stay loaded, and MemoryInUseError if it
        does not fit beside those that are in use now. A level that is loaded is then to be freed by the caller.
        """
        limit = self.limit
        if limit is None:
            return
        if weights is not None:
            self._measured[version, level.name] = dict(weights)
        known = self._measured.get((version, level.name))
        on_device = device != "cpu" and PRECISIONS[level.precision].device != "cpu"

        def excess(kept: Sequence[CacheEntry]) -> int:
            """Bytes that are missing if the level is loaded beside these."""
            loaded = [entry.weights for entry in kept]
            if known is not None:
                return union_bytes([*loaded, known]) - limit
            size = 0
            if not on_device:
                digests = {digest for entry in kept for digest in entry.level.files.values()} if self._shared else set()
                files = {digest: name for name, digest in level.files.items() if digest not in digests}
                size = sum((bundle / name).stat().st_size for name in files.values())
            return union_bytes(loaded) + size - limit

        evicted = False
        while not evicted:  # False: a request has taken one of them meanwhile
            entries = list(chain.from_iterable(user() for user in self._users))
            evicted = all(_evict(entry, level) for entry in self._chosen(entries, excess, level))

    def _chosen(
        self, entries: list[CacheEntry], excess: Callable[[Sequence[CacheEntry]], int], level: Level
    ) -> list[CacheEntry]:
        """The idle levels that have to go."""
        idle = sorted((x for x in entries if not x.pinned and not x.in_use), key=lambda x: x.last_used)
        chosen = list[CacheEntry]()
        kept = entries
        while (missing := excess(kept)) > 0 and idle:
            chosen.append(idle.pop(0))
            kept = [entry for entry in kept if entry is not chosen[-1]]
        if missing <= 0:
            return chosen
        pinned = [entry for entry in entries if entry.pinned]
        what = f"level {level.name!r} does not fit into `memory` of {_mebibytes(self.limit or 0)}"
        if excess(pinned) > 0:
            beside = f" beside {', '.join(x.name for x in pinned)}, which stay loaded" if pinned else ""
            raise FailedPreconditionError(
                f"{what}{beside}: {_mebibytes(excess(pinned))} are missing; raise `memory`, choose a smaller level, or "
                "load fewer levels at the start"
            )
        busy = ", ".join(entry.name for entry in entries if entry.in_use and not entry.pinned)
        raise MemoryInUseError(f"{what} while {busy} are in use: {_mebibytes(missing)} are missing; try again later")


def _evict(entry: CacheEntry, level: Level) -> bool:
    """Unloads a level for another one and waits until it is free. Returns False if it stays."""
    freed = entry.evict()
    if freed:
        log.info("level %s is unloaded: level %s needs its memory", entry.name, level.name)
    for future in freed:
        future.result()
    return bool(freed)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
