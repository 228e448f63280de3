"""Keeps the memory of loaded levels within a limit: unloads idle levels, least recently used first, for a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.errors import FailedPreconditionError, OverloadedError
from hmc.artifact.precisions import PRECISIONS
from hmc.serving.levels.byte_shares import FileBytes, union_bytes
from hmc.serving.levels.slots import LoadedBundle

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resident:
    """A loaded level as the room sees it. It does not refer to the level's translator, which may be freed meanwhile."""

    name: str
    """`MODEL/LEVEL`."""
    level: Level
    weights: FileBytes
    last_used: float
    """When its last request ended, in seconds of the host's clock."""
    pinned: bool
    """Whether it stays loaded until an administrator unloads it."""
    in_use: bool
    """Whether requests use it, or wait for it."""
    evict: Callable[[], list[Future[None]]]
    """Takes it out of service if it is still idle. Returns futures that are done when it is free."""

    @property
    def idle(self) -> bool:
        return not self.pinned and not self.in_use


class Room:
    """The memory of this machine that the levels of all models may hold with their weights.

    The hosts call it under the lock of their changes, which they share.
    """

    def __init__(self, limit: int | None = None) -> None:
        """limit: bytes; None: any number."""
        self.limit = limit
        self._tenants: list[Callable[[], list[Resident]]] = []
        self._measured: dict[tuple[str, str], dict[str, int]] = {}  # (version, level) → its weights when last loaded

    def join(self, residents: Callable[[], list[Resident]]) -> None:
        """Adds a host. residents: returns its loaded levels."""
        self._tenants.append(residents)

    def make(self, bundle: LoadedBundle, level: Level, device: str) -> None:
        """Unloads idle levels until a new one fits, and waits until they are free. device: where it will run, as in the
        settings.

        The bytes of the new level are those that it had when it was last loaded; at first those of its files. Unloads
        nothing if that would not do: raises FailedPreconditionError if the level fits beside none of the levels that
        stay loaded, and OverloadedError if it does not fit beside those that are in use now.
        """
        if self.limit is None:
            return

        def need(kept: Sequence[FileBytes], levels: Sequence[Level]) -> int:
            known = self._measured.get((bundle.manifest.version, level.name))
            if known is not None:
                return union_bytes([*kept, known]) - union_bytes(kept)
            on_device = device != "cpu" and PRECISIONS[level.precision].device != "cpu"
            held = {digest for other in levels for digest in other.files.values()}
            missing = {digest: name for name, digest in level.files.items() if digest not in held}
            return 0 if on_device else sum((bundle.path / name).stat().st_size for name in missing.values())

        self._clear(self._loaded(bundle, None), need, level.name)

    def settle(self, bundle: LoadedBundle, level: Level, weights: FileBytes) -> None:
        """Measures a level that has just been loaded, and unloads further idle levels if it is larger than expected.
        Errors: see `make`; the caller then frees the new level."""
        if self.limit is None:
            return
        self._measured[bundle.manifest.version, level.name] = dict(weights)

        def need(kept: Sequence[FileBytes], _: Sequence[Level]) -> int:
            return union_bytes([*kept, weights]) - union_bytes(kept)

        self._clear(self._loaded(bundle, level), need, level.name)

    def _loaded(self, bundle: LoadedBundle, new: Level | None) -> list[Resident]:
        """All loaded levels, and those of a bundle that is not in service yet, but not the new one."""
        residents = [resident for tenant in self._tenants for resident in tenant()]
        own = {id(resident.level) for resident in residents}
        residents += [
            Resident(name, slot.level, dict(slot.translator.weights), 0.0, True, True, list)
            for name, slot in bundle.slots.items()
            if id(slot.level) not in own
        ]
        return [resident for resident in residents if resident.level is not new]

    def _clear(
        self, loaded: list[Resident], need: Callable[[Sequence[FileBytes], Sequence[Level]], int], name: str
    ) -> None:
        """Evicts idle levels, least recently used first, until `need` of the rest fits."""
        assert self.limit is not None

        def excess(kept: Sequence[Resident]) -> int:
            weights = [resident.weights for resident in kept]
            return union_bytes(weights) + need(weights, [resident.level for resident in kept]) - int(self.limit or 0)

        idle, chosen, kept = sorted((r for r in loaded if r.idle), key=lambda r: r.last_used), list[Resident](), loaded
        while excess(kept) > 0 and idle:
            chosen.append(idle.pop(0))
            kept = [resident for resident in kept if resident is not chosen[-1]]
        if (over := excess(kept)) > 0:
            raise self._refused(loaded, excess, over, name)
        for resident in chosen:
            freed = resident.evict()
            log.info("level %s is unloaded: level %s needs its memory", resident.name, name)
            for future in freed:
                future.result()

    def _refused(
        self, loaded: list[Resident], excess: Callable[[Sequence[Resident]], int], over: int, name: str
    ) -> FailedPreconditionError | OverloadedError:
        limit = int(self.limit or 0)
        pinned = [resident for resident in loaded if resident.pinned]
        what = f"level {name!r} does not fit into --memory of {_mebibytes(limit)}"
        if excess(pinned) > 0:
            held = f" beside {', '.join(r.name for r in pinned)}, which stay loaded" if pinned else ""
            return FailedPreconditionError(
                f"{what}{held}: {_mebibytes(excess(pinned))} are missing; raise --memory, choose a smaller level, or "
                "load fewer levels at the start"
            )
        busy = ", ".join(resident.name for resident in loaded if resident.in_use and not resident.pinned)
        return OverloadedError(f"{what} while {busy} are in use: {_mebibytes(over)} are missing; try again later")


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
