"""The loaded levels of a model: loads them, and frees those that leave, when their last request has ended."""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from hmc.artifact.bundle.manifest import Level
from hmc.artifact.errors import DeviceUnavailableError, UnavailableError
from hmc.serving.levels.memory import CacheEntry, Capacity
from hmc.serving.levels.slots import LoadedBundle, Slot, TranslatorFactory

log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try again at another one"


class LevelCache:
    """The loaded levels of one model. They leave when they are evicted or taken out of service.

    A level is idle if no request uses it or waits for it, and if it does not stay loaded. Calls that load, evict or
    free levels must not overlap: the host makes them under the lock of its changes.
    """

    def __init__(
        self, model: str, bundle: LoadedBundle, factory: TranslatorFactory, device: str, capacity: Capacity,
        pinned: Callable[[str], bool], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """bundle: in service. factory: loads a translator. device: where levels run, as in the settings. capacity:
        where levels must find memory. pinned: whether a level, by its name, stays loaded; called with `state` held.
        clock: returns the time in seconds."""
        self.state = threading.Condition()
        """Guards `bundle`, its slots and their users. Held for moments, and notified when a request ends."""
        self.bundle = bundle
        """The bundle in service."""
        self.stopping = False
        """If it is set, no level begins to load; a call that needs one raises UnavailableError."""
        self._model = model
        self._factory = factory
        self._device = device
        self._capacity = capacity
        self._pinned = pinned
        self._clock = clock
        self._next: LoadedBundle | None = None
        """A bundle that is being loaded, and not yet in service."""
        self._wanted: Counter[str] = Counter()
        self._leaving: dict[str, list[Future[None]]] = {}
        """Name → futures of levels that are being freed."""
        self._busy: dict[Future[None], CacheEntry] = {}
        """Levels that no longer serve, but whose weights are still held by their last requests."""
        capacity.join(self.entries)

    def entries(self) -> list[CacheEntry]:
        """All levels that hold weights: in service, of a bundle that is being loaded, and leaving."""
        with self.state:
            entries = [
                CacheEntry(
                    f"{self._model}/{name}", slot.level, dict(slot.translator.weights), slot.last_used,
                    self._pinned(name), self._in_use(name, slot), partial(self.evict, name),
                )
                for name, slot in self.bundle.slots.items()
            ]  # fmt: skip
            loaded = self._next.slots.items() if self._next else ()
            entries += [CacheEntry(name, slot.level, dict(slot.translator.weights)) for name, slot in loaded]
            return entries + list(self._busy.values())

    def _in_use(self, name: str, slot: Slot) -> bool:
        return slot.users > 0 or self._wanted[name] > 0

    @contextmanager
    def wanted(self, name: str) -> Iterator[None]:
        """While the `with` block runs, a request waits for the level of this name, which so is not idle."""
        with self.state:
            self._wanted[name] += 1
        try:
            yield
        finally:
            with self.state:
                self._wanted[name] -= 1

    # ---- loading ----

    def fill(self, bundle: LoadedBundle, levels: Sequence[Level], required: Collection[str]) -> None:
        """Loads levels of the bundle in service, or of one that is to replace it, in the given order. If one fails, all
        levels of that bundle are freed and the error is raised.

        A level whose device is missing is left out if its name is not `required`. If `stopping` ended the loading of
        the bundle in service, `ModelHost.close` frees its levels: requests may use them.
        """
        in_service = bundle is self.bundle
        with self.state:
            bundle.loading = [level.name for level in levels]
            self._next = None if in_service else bundle
        try:
            for level in levels:
                try:
                    self.load(bundle, level)
                except DeviceUnavailableError as error:
                    if level.name in required:
                        raise
                    log.warning("level %s is left out: %s", level.name, error)
                    with self.state:
                        bundle.loading.remove(level.name)
        except BaseException:
            if not (self.stopping and in_service):
                for slot in bundle.slots.values():
                    slot.translator.close(drain=False)
                bundle.slots.clear()
            raise
        finally:
            self._next = None

    def load(self, bundle: LoadedBundle, level: Level) -> None:
        """Loads a level and warms it up. Raises InvalidArtifactError, DeviceUnavailableError, UnavailableError if
        `stopping`, and as `Capacity.clear`."""
        if self.stopping:
            raise UnavailableError(SHUTTING_DOWN)
        clear = partial(self._capacity.clear, level, bundle.path, bundle.manifest.version, self._device)
        try:
            clear()
            translator = self._factory(bundle.path, bundle.manifest, level.name)
            try:
                translator.warm_up()
                clear(translator.weights)  # it may be larger than expected
            except BaseException:
                translator.close(drain=False)
                raise
        except DeviceUnavailableError:
            with self.state:
                bundle.unavailable.add(level.name)
            raise
        log.info("level %s: %d heads, %s, on %s", level.name, level.heads, level.precision, translator.device)
        with self.state:
            bundle.unavailable.discard(level.name)
            bundle.slots[level.name] = Slot(level, translator, last_used=self._clock())
            bundle.loading = [name for name in bundle.loading if name != level.name]

    # ---- leaving ----

    def evict(self, name: str, unused_s: float = 0.0) -> list[Future[None]]:
        """Takes a level out of service if it is idle, and has been for `unused_s` seconds. Returns futures that are
        done when it is free; none if it stays."""
        with self.state:
            slots = self.bundle.slots
            slot = slots.get(name)
            if slot is None or self._pinned(name) or self._in_use(name, slot):
                return []
            if self._clock() - slot.last_used < unused_s:
                return []
            leaving = [slots.pop(name)]
            del slot  # `free` wants the only reference
        return self.free(leaving)

    def free(self, slots: list[Slot]) -> list[Future[None]]:
        """Starts freeing the levels in `slots`, and empties the list. Each is freed in a thread of its own, so that
        other levels can serve, load and change meanwhile. Returns a future for each level, done when the level is free;
        it has the error of a level that cannot be freed.

        The caller must hold no other reference to them: a level's memory returns to the system when the last one goes.
        """
        begun = []
        while slots:
            alone = [slots.pop()]
            name = alone[0].level.name
            freed = Future[None]()
            freed.set_running_or_notify_cancel()  # a caller that stops waiting cannot cancel it
            self._leaving[name] = [*self.leaving(name), freed]
            begun.append(freed)
            with self.state:
                if alone[0].users:
                    weights = dict(alone[0].translator.weights)
                    self._busy[freed] = CacheEntry(f"{self._model}/{name}", alone[0].level, weights, pinned=False)
            threading.Thread(target=self._free, args=(alone, name, freed), name=f"free-{name}").start()
        return begun

    def leaving(self, level: str | None = None) -> list[Future[None]]:
        """One future, as `free` returns them, for each level of this name (None: any name) that is not free yet."""
        levels = self._leaving if level is None else [level]
        return [future for name in levels for future in self._leaving.get(name, []) if not future.done()]

    def _free(self, slots: list[Slot], name: str, freed: Future[None]) -> None:
        try:
            with self.state:
                self.state.wait_for(lambda: slots[-1].users == 0)
                self._busy.pop(freed, None)
            slots.pop().translator.close(drain=True)
            collect()
            with self.state:
                serving = list(self.bundle.slots.values())[:1]
            for slot in serving:  # the levels on a CPU share their working memory: one call shrinks it
                slot.translator.release_memory()
        except BaseException as error:
            log.exception("level %s could not be freed", name)
            freed.set_exception(error)
        else:
            freed.set_result(None)


def collect() -> None:
    """Frees what only refers to itself. A server freezes the objects that it had loaded when it began to serve
    (`gc.freeze`). Levels that leave are among these objects, so the collector searches them too, and freezes them
    again."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
