"""The loaded bundle: a translator for each level that serves, and how to change both without losing a request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from hmc.artifact.bundle import Level
from hmc.artifact.bundle_checks import validate
from hmc.artifact.errors import (
    DeviceUnavailableError,
    FailedPreconditionError,
    LevelNotLoadedError,
    UnavailableError,
)
from hmc.serving.loaded import Generation, HostStatus, Lease, LevelStatus, Slot, TranslatorFactory
from hmc.serving.retirement import Retirement
from hmc.serving.selection import AutoPolicy, Selector, choose, rank, runs_on
from hmc.serving.shares import disk_shares, shares

log = logging.getLogger(__name__)

SHUTTING_DOWN = "the server is shutting down; try again at another one"


class ModelHost:
    """Serves the levels of one bundle. Thread-safe; knows nothing of any transport.

    `start` loads `levels` (None: all that run on `device`), and the default level always. `load` loads others. With
    `lazy` only the default level is loaded at the start. Without `default_level` the bundle's own is the default, or
    the one nearest to it that runs on `device`.
    """

    def __init__(
        self,
        bundle: Path | str,
        factory: TranslatorFactory,
        *,
        levels: Sequence[str] | None = None,
        default_level: str | None = None,
        device: str = "auto",
        lazy: bool = False,
        auto: AutoPolicy | None = None,
    ) -> None:
        """Validates the bundle. Raises InvalidArtifactError, and LevelNotFoundError for names that it does not have."""
        self._factory, self._levels, self._default, self._device = factory, levels, default_level, device
        self.lazy = lazy
        self._auto = auto or AutoPolicy()
        self._state = threading.Condition()  # guards _current, slots and users; held for moments
        self._changing = threading.Lock()  # one load, unload or reload at a time; held while a level loads
        self._closed = False
        self._stopping = False
        self._current = self._read(Path(bundle))
        self._retirement = Retirement(self._state, lambda: list(self._current.slots.values()))
        for name in levels or ():
            self._current.manifest.level(name)

    def _read(self, path: Path) -> Generation:
        manifest = validate(path)
        default = manifest.level(self._default or manifest.default_level)
        fitting = [level for level in manifest.levels if runs_on(self._device, level)]
        if self._default is None and fitting and default not in fitting:
            default = min(fitting, key=lambda level: (abs(level.heads - default.heads), rank(level)))
        return Generation(path, manifest, default.name, disk_shares(path, manifest))

    # ---- loading ----

    def start(self) -> None:
        """Loads and warms up the first levels. Raises InvalidArtifactError and DeviceUnavailableError."""
        with self._changing:
            self._fill(self._current, set())

    def _fill(self, generation: Generation, also: set[str]) -> None:
        """Loads a generation's default level, then the others that are asked for; frees them all if one fails."""
        ordered = sorted(generation.manifest.levels, key=lambda x: (x.name != generation.default, rank(x)))
        named, every = {generation.default, *(self._levels or ()), *also}, self._levels is None and not self.lazy
        wanted = [x for x in ordered if x.name in named or (every and runs_on(self._device, x))]
        with self._state:
            generation.coming = [level.name for level in wanted]
        try:
            for level in wanted:
                try:
                    self._add(generation, level)
                except DeviceUnavailableError as error:
                    if level.name in named:
                        raise
                    log.warning("level %s is left out: %s", level.name, error)
                    with self._state:
                        generation.coming.remove(level.name)
        except BaseException:
            if not (self._stopping and generation is self._current):  # `close` lets those finish that serve already
                for slot in generation.slots.values():
                    slot.translator.close(drain=False)
                generation.slots.clear()
            raise

    def _add(self, generation: Generation, level: Level) -> None:
        try:
            slot = self._open(generation, level)
        except DeviceUnavailableError:
            with self._state:
                generation.left_out.add(level.name)
            raise
        with self._state:
            generation.left_out.discard(level.name)
            generation.slots[level.name] = slot
            generation.coming = [name for name in generation.coming if name != level.name]

    def _open(self, generation: Generation, level: Level) -> Slot:
        if self._stopping:
            raise UnavailableError(SHUTTING_DOWN)
        translator = self._factory(generation.path, generation.manifest, level.name)
        try:
            translator.warm_up()
        except BaseException:
            translator.close(drain=False)
            raise
        log.info("level %s: %d heads, %s, on %s", level.name, level.heads, level.precision, translator.device)
        return Slot(level, translator)

    def load(self, name: str) -> LevelStatus:
        """Loads a level and warms it up; does nothing if it serves already. Raises LevelNotFoundError."""
        with self._changing:
            generation = self._current
            level = generation.manifest.level(name)
            if name not in generation.slots:
                self._add(generation, level)
        return self._status(generation, level)

    def unload(self, name: str) -> LevelStatus:
        """Gives a level no new work, lets it finish what it has, frees it; blocks until then, while others may load.

        Raises LevelNotFoundError, and FailedPreconditionError for the default level.
        """
        with self._changing:
            generation = self._current
            level = generation.manifest.level(name)
            if name == generation.default:
                raise FailedPreconditionError(
                    f"level {name!r} is the default level and stays loaded; start the server with another "
                    "--default-level to unload it"
                )
            with self._state:
                slots = [generation.slots.pop(name)] if name in generation.slots else []
            self._retirement.begin(slots)
            waiting = self._retirement.threads(name)
        for thread in waiting:
            thread.join()
        return self._status(generation, level)

    def reload(self, path: Path | str | None = None) -> HostStatus:
        """Loads a bundle beside the current one, switches, and lets the old one finish; None reads the same path again.

        Raises InvalidArtifactError, LevelNotFoundError or DeviceUnavailableError; the current bundle then stays.
        """
        with self._changing:
            old = self._current
            new = self._read(Path(path) if path is not None else old.path)
            self._fill(new, set(old.slots))
            with self._state:
                self._current = new
            slots = list(old.slots.values())
            old.slots.clear()
            self._retirement.begin(slots)
        log.info("bundle %s replaces %s", new.manifest.version, old.manifest.version)
        return self.status()

    def stop_loading(self) -> None:
        """No further level is loaded: `start`, `load` and `reload` end before the next one with UnavailableError. For
        whoever is about to `close`, which waits for the level that is being loaded."""
        self._stopping = True

    def close(self, drain: bool = True) -> None:
        """Frees every level; with `drain` after it has finished what is queued. No lease is given from then on."""
        self.stop_loading()
        with self._changing:
            with self._state:
                self._closed = True
                slots = list(self._current.slots.values())
                self._current.slots.clear()
            for slot in slots:
                slot.translator.close(drain=drain)
        for thread in self._retirement.threads():
            thread.join()

    # ---- use ----

    def lease(self, selector: Selector | None = None, *, patient: bool = False) -> Lease:
        """The level that `selector` means (None: the default), for use in a `with` block. patient: other texts may pass
        those of this lease, which for `auto` wait for all that is there, and not just for what is in a hurry.

        Raises LevelNotFoundError, LevelNotLoadedError, and UnavailableError before `start`, after `close`, and where it
        means a level that `start` has still to load, or may.
        """
        with self._state:
            level = self._resolve(selector or Selector(), patient)
            slot = self._current.slots.get(level.name)
            if level.name in self._current.coming:
                raise UnavailableError(
                    f"level {level.name!r}, which this request means, is still loading; wait until the server's health "
                    "is SERVING"
                )
            if slot is None:
                raise LevelNotLoadedError(
                    level.name,
                    f"level {level.name!r} is not loaded; load it with `hmc admin load` (AdminService.LoadLevel), "
                    f"start the server with it in --levels, or choose one that is: {', '.join(self._current.slots)}",
                )
            slot.users += 1
            return Lease(slot, self._current.manifest.version, self._end, patient)

    def _end(self, slot: Slot) -> None:
        with self._state:
            slot.users -= 1
            self._state.notify_all()

    def _resolve(self, selector: Selector, patient: bool) -> Level:
        current = self._current
        if self._closed:
            raise UnavailableError(SHUTTING_DOWN)
        if current.default not in current.slots:
            raise UnavailableError("the server is still loading; wait until its health is SERVING")
        if selector == Selector():
            return current.manifest.level(current.default)
        if selector.name is not None:
            return current.manifest.level(selector.name)
        device = self._device if self.lazy and not selector.auto else None
        return choose(selector, current.candidates(patient=patient, loadable_on=device), self._auto)

    # ---- what there is ----

    def status(self) -> HostStatus:
        """The bundle and its levels, loaded or not, from the best to the cheapest."""
        with self._state:
            current = self._current
            levels = sorted(current.manifest.levels, key=rank)
            devices = sorted({slot.translator.device for slot in current.slots.values()})
        statuses = tuple(self._status(current, level) for level in levels)
        return HostStatus(current.manifest, current.path, ", ".join(devices), statuses)

    def _status(self, generation: Generation, level: Level) -> LevelStatus:
        with self._state:
            slots = dict(generation.slots)
        slot, is_default, disk = slots.get(level.name), level.name == generation.default, generation.disk[level.name]
        if slot is None:
            return LevelStatus(level, False, is_default, 0, None, disk, None)
        memory = shares({name: other.translator.weights for name, other in slots.items()})[level.name]
        return LevelStatus(level, True, is_default, slot.translator.pending, slot.latency.summary(), disk, memory)
