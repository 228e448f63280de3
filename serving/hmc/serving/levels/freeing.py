"""Frees levels: those that no longer serve, when their last request has ended; idle ones after a time; and, least
recently used first, those whose memory a new level needs.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.errors import FailedPreconditionError, MemoryInUseError
from hmc.artifact.precisions import PRECISIONS
from hmc.serving.levels.byte_shares import FileBytes, union_bytes
from hmc.serving.levels.slots import LoadedBundle, Slot

log = logging.getLogger(__name__)


def collect() -> None:
    """Frees what only refers to itself. A server freezes the objects that it had loaded when it began to serve
    (`gc.freeze`). Levels that leave are among these objects, so the collector searches them too, and freezes them
    again."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()


class Retirement:
    """Frees each level in a thread of its own, so that other levels can serve, load and change meanwhile.

    Calls of `begin` and `freed` must not overlap: the host makes them under the lock of its changes.
    """

    def __init__(self, state: threading.Condition, serving: Callable[[], list[Slot]]) -> None:
        """state: guards `Slot.users`, and is notified when a request ends. serving: returns the levels that still
        serve; it is called with `state` held."""
        self._state = state
        self._serving = serving
        self._freed: dict[str, list[Future[None]]] = {}
        self._busy: dict[Future[None], Resident] = {}

    def busy(self, model: str) -> list[Resident]:
        """The levels of the model that no longer serve, but whose weights are still held by their last requests."""
        with self._state:
            return [replace(each, name=f"{model}/{each.level.name}") for each in self._busy.values()]

    def begin(self, slots: list[Slot]) -> list[Future[None]]:
        """Starts freeing the levels in `slots`, and empties the list. Returns a future for each level, done when the
        level is free; it has the error of a level that cannot be freed.

        The caller must hold no other reference to them: a level's memory returns to the system when the last one goes.
        """
        begun = []
        while slots:
            alone = [slots.pop()]
            name = alone[0].level.name
            freed = Future[None]()
            freed.set_running_or_notify_cancel()  # a caller that stops waiting cannot cancel it
            self._freed[name] = [f for f in self._freed.get(name, []) if not f.done()] + [freed]
            begun.append(freed)
            with self._state:
                if alone[0].users:
                    weights = dict(alone[0].translator.weights)
                    self._busy[freed] = Resident(name, alone[0].level, weights, 0.0, False, True, list)
            threading.Thread(target=self._free, args=(alone, name, freed), name=f"free-{name}").start()
        return begun

    def freed(self, level: str | None = None) -> list[Future[None]]:
        """One future, as `begin` returns them, for each level of this name (None: any name) that is not free yet."""
        levels = self._freed if level is None else [level]
        return [future for name in levels for future in self._freed.get(name, []) if not future.done()]

    def _free(self, slots: list[Slot], name: str, freed: Future[None]) -> None:
        try:
            with self._state:
                self._state.wait_for(lambda: slots[-1].users == 0)
                self._busy.pop(freed, None)
            slots.pop().translator.close(drain=True)
            collect()
            with self._state:
                left = self._serving()
            for slot in left[:1]:  # the levels on a CPU share their working memory: one call shrinks it
                slot.translator.release_memory()
        except BaseException as error:
            log.exception("level %s could not be freed", name)
            freed.set_exception(error)
        else:
            freed.set_result(None)


class Residency:
    """The eviction view of a host's loaded levels.

    A level is idle if no request uses it or waits for it, and if it is not one that stays loaded.
    """

    def __init__(
        self,
        model: str,
        state: threading.Condition,
        current: Callable[[], LoadedBundle],
        retirement: Retirement,
        pinned: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        """state: guards what is loaded. current: returns the bundle in service. pinned: whether a level, by its name,
        stays loaded; both are called with `state` held. clock: returns the time in seconds."""
        self._model = model
        self._state = state
        self._current = current
        self._retirement = retirement
        self._pinned = pinned
        self._clock = clock
        self._wanted: Counter[str] = Counter()

    @contextmanager
    def wanted(self, name: str) -> Iterator[None]:
        """While the `with` block runs, a request waits for the level of this name, which so is not idle."""
        with self._state:
            self._wanted[name] += 1
        try:
            yield
        finally:
            with self._state:
                self._wanted[name] -= 1

    def residents(self) -> list[Resident]:
        """The loaded levels of the bundle in service."""
        with self._state:
            return [self._resident(name, slot) for name, slot in self._current().slots.items()]

    def _resident(self, name: str, slot: Slot) -> Resident:
        return Resident(
            f"{self._model}/{name}",
            slot.level,
            dict(slot.translator.weights),
            slot.last_used,
            self._pinned(name),
            self._in_use(name, slot),
            partial(self.evict, name),
        )

    def _in_use(self, name: str, slot: Slot) -> bool:
        return slot.users > 0 or self._wanted[name] > 0

    def evict(self, name: str, unused_s: float = 0.0) -> list[Future[None]]:
        """Takes a level out of service if it is idle, and has been for `unused_s` seconds. Returns futures that are
        done when it is free; none if it stays. The caller holds the lock of the host's changes."""
        with self._state:
            slots = self._current().slots
            slot = slots.get(name)
            if slot is None or self._pinned(name) or self._in_use(name, slot):
                return []
            if self._clock() - slot.last_used < unused_s:
                return []
            leaving = [slots.pop(name)]
            del slot  # `begin` wants the only reference
        return self._retirement.begin(leaving)

    def evict_idle(self, unused_s: float) -> list[Future[None]]:
        """Takes every level out of service that has been idle for `unused_s` seconds. See `evict`."""
        freed = []
        for resident in self.residents():
            if done := self.evict(resident.level.name, unused_s):
                log.info("level %s is unloaded: no request has used it for %g s", resident.name, unused_s)
                freed += done
        return freed


@dataclass(frozen=True)
class Resident:
    """A loaded level as `Room` sees it. It does not refer to the level's translator, which may be freed meanwhile."""

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

    def __init__(self, limit: int | None = None, *, shared: bool = True) -> None:
        """limit: bytes; None: any number. shared: whether levels share the weights of equal files."""
        self.limit = limit
        self._shared = shared
        self._tenants: list[Callable[[], list[Resident]]] = []
        self._measured: dict[tuple[str, str], dict[str, int]] = {}  # (version, level) → its weights when last loaded

    def join(self, residents: Callable[[], list[Resident]]) -> None:
        """Adds a host. residents: returns its loaded levels."""
        self._tenants.append(residents)

    def make(self, bundle: LoadedBundle, level: Level, device: str) -> None:
        """Unloads idle levels until a new one fits, and waits until they are free. device: where it will run, as in the
        settings.

        The new level counts with the bytes that it had when it was last loaded, or at first with the bytes of its
        files. If unloading would not free enough memory, unloads nothing (unless requests take levels meanwhile), and
        raises FailedPreconditionError if the level fits beside none of the levels that stay loaded, and
        MemoryInUseError if it does not fit beside those that are in use now.
        """
        if self.limit is None:
            return

        def need(kept: Sequence[FileBytes], levels: Sequence[Level]) -> int:
            known = self._measured.get((bundle.manifest.version, level.name))
            if known is not None:
                return union_bytes([*kept, known]) - union_bytes(kept)
            on_device = device != "cpu" and PRECISIONS[level.precision].device != "cpu"
            held = {digest for other in levels for digest in other.files.values()} if self._shared else set()
            missing = {digest: name for name, digest in level.files.items() if digest not in held}
            return 0 if on_device else sum((bundle.path / name).stat().st_size for name in missing.values())

        self._clear(lambda: self._loaded(bundle, None), need, level.name)

    def settle(self, bundle: LoadedBundle, level: Level, weights: FileBytes) -> None:
        """Measures a level that has just been loaded, and unloads further idle levels if it is larger than expected.
        Errors: see `make`; the caller then frees the new level."""
        if self.limit is None:
            return
        self._measured[bundle.manifest.version, level.name] = dict(weights)

        def need(kept: Sequence[FileBytes], _: Sequence[Level]) -> int:
            return union_bytes([*kept, weights]) - union_bytes(kept)

        self._clear(lambda: self._loaded(bundle, level), need, level.name)

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
        self, find: Callable[[], list[Resident]], need: Callable[[Sequence[FileBytes], Sequence[Level]], int], name: str
    ) -> None:
        """Evicts idle levels, least recently used first, until `need` of the rest fits. find: the loaded levels."""
        while not all(self._evict(resident, name) for resident in self._chosen(find(), need, name)):
            pass  # a request has taken one of them meanwhile

    def _evict(self, resident: Resident, name: str) -> bool:
        """Unloads a level for another one and waits until it is free. Returns False if it stays."""
        freed = resident.evict()
        if freed:
            log.info("level %s is unloaded: level %s needs its memory", resident.name, name)
        for future in freed:
            future.result()
        return bool(freed)

    def _chosen(
        self, loaded: list[Resident], need: Callable[[Sequence[FileBytes], Sequence[Level]], int], name: str
    ) -> list[Resident]:
        """The idle levels that have to go."""

        def excess(kept: Sequence[Resident]) -> int:
            weights = [resident.weights for resident in kept]
            return union_bytes(weights) + need(weights, [resident.level for resident in kept]) - int(self.limit or 0)

        idle = sorted((r for r in loaded if r.idle), key=lambda r: r.last_used)
        chosen = list[Resident]()
        kept = loaded
        while excess(kept) > 0 and idle:
            chosen.append(idle.pop(0))
            kept = [resident for resident in kept if resident is not chosen[-1]]
        if (over := excess(kept)) > 0:
            raise self._refused(loaded, excess, over, name)
        return chosen

    def _refused(
        self, loaded: list[Resident], excess: Callable[[Sequence[Resident]], int], over: int, name: str
    ) -> FailedPreconditionError | MemoryInUseError:
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
        return MemoryInUseError(f"{what} while {busy} are in use: {_mebibytes(over)} are missing; try again later")


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
