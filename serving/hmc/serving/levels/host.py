"""Loads the levels of a bundle, leases them to requests, and changes what is loaded without losing a request."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path

from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.bundle.order import Standing, order, recommended
from hmc.artifact.errors import FailedPreconditionError, LevelNotLoadedError, UnavailableError
from hmc.engine.requests.caller import Priority
from hmc.serving.levels.cache import SHUTTING_DOWN, LevelCache
from hmc.serving.levels.choosing import choose, runs_on
from hmc.serving.levels.controller import AutoController, AutoPolicy
from hmc.serving.levels.latency import RequestTimes
from hmc.serving.levels.memory import Capacity, disk_shares
from hmc.serving.levels.slots import HostStatus, Lease, LevelStatus, LoadedBundle, Slot, TranslatorFactory
from hmc.serving.requests.call import PresentCall
from hmc.serving.requests.selectors import MAX_NAME, Selector
from hmc.serving.text.languages import Languages

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ModelHost:
    """The levels of one bundle. Thread-safe, and independent of any transport.

    `start` loads the default level first and then `levels` (None: all levels that run on `device`). With `lazy` it
    loads the default level and `levels` only; `load` loads the others later. With `on_demand`, which needs `lazy`, it
    loads nothing. If `default_level` is None, the default is the bundle's own default level. If that level does not run
    on `device`, it is the recommended one among the levels that do.

    With `lazy`, idle levels may be evicted (`cache`), but not the default level unless `on_demand`.
    """

    def __init__(
        self, bundle: Path | str, factory: TranslatorFactory, *, levels: Sequence[str] | None = None,
        default_level: str | None = None, device: str = "auto", lazy: bool = False, auto: AutoPolicy | None = None,
        name: str = "", on_demand: bool = False, capacity: Capacity | None = None,
        changing: threading.RLock | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Validates the bundle. Raises InvalidArtifactError, and LevelNotFoundError for an unknown name.

        name: of the model; empty: `SOURCE-TARGET`, its languages. capacity: where levels must find memory; None: no
        limit. changing: a re-entrant lock of changes, which hosts of one capacity share; None: its own. clock: in
        seconds.
        """
        self._levels = levels
        self._default = default_level
        self._device = device
        self.lazy = lazy
        self._on_demand = on_demand
        self._clock = clock
        self._auto = auto or AutoPolicy()
        # One load, unload or reload at a time; held while a level loads.
        self._changing = changing if changing is not None else threading.RLock()
        self._closed = self._started = False
        self.bundle_path = Path(bundle)
        """Where the bundle is looked for when it is reloaded. A symbolic link is followed at each reload only."""
        first = self._read(self.bundle_path)
        self.name = name or name_of(first.manifest)
        self.root = Path(bundle).absolute().parent
        """The folder that holds the first bundle. A reload does not move it."""
        self.cache = LevelCache(self.name, first, factory, device, capacity or Capacity(), self._stays_loaded, clock)
        self._state = self.cache.state

    def _read(self, folder: Path) -> LoadedBundle:
        path = folder.resolve()  # so that levels that are loaded later are of this bundle, wherever a link leads then
        manifest = validate(path)
        for level in self._levels or ():
            manifest.level(level)
        default = manifest.level(self._default or manifest.default_level)
        fitting = [level for level in manifest.levels if runs_on(self._device, level)]
        if self._default is None and fitting and default not in fitting:
            default = recommended(fitting).level
        urgent = AutoController(self._auto)
        other = AutoController(replace(self._auto, target_ms=None))
        shares = disk_shares(path, manifest)
        languages = Languages.read(path, manifest)
        times = RequestTimes(manifest.levels, self._clock)
        return LoadedBundle(path, manifest, default.name, shares, languages, {True: urgent, False: other}, times)

    @property
    def languages(self) -> Languages:
        """The languages from and into which the bundle translates."""
        return self.cache.bundle.languages

    @property
    def version(self) -> str:
        """Of the bundle in service."""
        return self.cache.bundle.manifest.version

    @property
    def eager(self) -> bool:
        """Whether the default level is loaded at the start, and stays loaded."""
        return not self._on_demand

    def _stays_loaded(self, level: str) -> bool:
        return not self.lazy or (self.eager and level == self.cache.bundle.default)

    # ---- loading ----

    def start(self) -> None:
        """Loads the first levels and warms them up. Raises InvalidArtifactError and DeviceUnavailableError."""
        with self._changing:
            self._fill(self.cache.bundle, set())
            with self._state:
                self._started = True

    def _fill(self, bundle: LoadedBundle, also: set[str]) -> None:
        """Loads the default level, the levels that the host was made with, and those named in `also`."""
        ordered = sorted((x.level for x in order(bundle.manifest.levels)), key=lambda x: x.name != bundle.default)
        first = () if self._on_demand else (bundle.default, *(self._levels or ()))
        named = {*first, *also}
        every = self._levels is None and not self.lazy
        wanted = [x for x in ordered if x.name in named or (every and runs_on(self._device, x))]
        self.cache.fill(bundle, wanted, named)

    def load(self, name: str) -> LevelStatus:
        """Loads a level and warms it up. Does nothing if it is loaded. Raises LevelNotFoundError, InvalidArtifactError,
        DeviceUnavailableError, and UnavailableError after `stop_loading`."""
        with self._changing:
            bundle = self.cache.bundle
            level = bundle.manifest.level(name)
            if name not in bundle.slots:
                self.cache.load(bundle, level)
        return self._status(bundle, level)

    def begin_unload(self, name: str) -> tuple[LevelStatus, list[Future[None]]]:
        """Takes a level out of service at once. It finishes the requests that it has, and is then freed.

        Returns its status and futures that are done when it is free. Raises LevelNotFoundError, and
        FailedPreconditionError for the default level.
        """
        with self._changing:
            bundle = self.cache.bundle
            level = bundle.manifest.level(name)
            if name == bundle.default:
                raise FailedPreconditionError(
                    f"level {name!r} is the default level and stays loaded; make another level the default one with "
                    "`hmc admin default` (AdminService.SetDefaultLevel) to unload it"
                )
            with self._state:
                slots = [bundle.slots.pop(name)] if name in bundle.slots else []
            before = self.cache.leaving(name)
            freed = [*before, *self.cache.free(slots)]  # also those that have failed at once
            return self._status(bundle, level), freed

    def unload(self, name: str) -> LevelStatus:
        """`begin_unload`, and waits until the level is free; other levels may be changed meanwhile."""
        status, freed = self.begin_unload(name)
        for future in freed:
            future.result()
        return status

    def unload_idle(self, unused_s: float) -> list[Future[None]]:
        """Takes levels out of service that no request has used for `unused_s` seconds, except levels that stay loaded.
        Returns futures that are done when they are free."""
        freed = []
        with self._changing:
            for name in list(self.cache.bundle.slots):
                if evicted := self.cache.evict(name, unused_s):
                    log.info("level %s/%s is unloaded: no request has used it for %g s", self.name, name, unused_s)
                    freed += evicted
        return freed

    def set_default(self, name: str) -> LevelStatus:
        """Makes a loaded level the default one, until the next `reload`. Raises LevelNotFoundError, and
        LevelNotLoadedError if it is not loaded."""
        with self._changing:
            bundle = self.cache.bundle
            level = bundle.manifest.level(name)
            with self._state:
                if name not in bundle.slots:
                    raise self._not_loaded(name)
                bundle.default = name
            return self._status(bundle, level)

    def reload(self, path: Path | str | None = None) -> HostStatus:
        """Loads a bundle beside the current one, puts it in service, and lets the old one finish its requests.

        path None: reads `bundle_path` again. Raises InvalidArtifactError, LevelNotFoundError or
        DeviceUnavailableError; the current bundle then stays in service.
        """
        with self._changing:
            old = self.cache.bundle
            folder = Path(path) if path is not None else self.bundle_path
            new = self._read(folder)
            self._fill(new, set(old.slots))
            with self._state:
                self.cache.bundle = new
                self.bundle_path = folder
            if lost := sorted(old.slots.keys() - {level.name for level in new.manifest.levels}):
                log.warning("bundle %s has no level %s, which was loaded", new.manifest.version, ", ".join(lost))
            slots = list(old.slots.values())
            old.slots.clear()
            self.cache.free(slots)
        log.info("bundle %s replaces %s", new.manifest.version, old.manifest.version)
        return self.status()

    def stop_loading(self) -> None:
        """From now on no level begins to load: `start`, `load` and `reload` raise UnavailableError before the next one.

        Call it before `close`, which otherwise waits for all levels that are still to load.
        """
        self.cache.stopping = True

    def close(self, drain: bool = True) -> None:
        """Frees every level, with `drain` after it has finished its requests. `lease` raises from then on."""
        self.stop_loading()
        with self._changing:
            with self._state:
                self._closed = True
                slots = list(self.cache.bundle.slots.values())
                self.cache.bundle.slots.clear()
            for slot in slots:
                slot.translator.close(drain=drain)
            freed = self.cache.leaving()
        wait(freed)

    # ---- use ----

    def lease(
        self,
        selector: Selector | None = None,
        *,
        priority: Priority = Priority.INTERACTIVE,
        call: PresentCall | None = None,
        code: str = "",
        characters: int = 0,
    ) -> Lease:
        """Leases the level that `selector` chooses (None: the default level); use it in a `with` block.

        priority: of the texts of this lease. `auto` counts the texts for which they would wait as load: for interactive
        texts only interactive texts, otherwise all. call, code: see `Lease`. characters: of all texts, by which a
        latency budget is judged.

        Raises LevelNotFoundError if no level fits, LevelNotLoadedError if the level is not loaded, and UnavailableError
        before `start`, after `close`, and if the chosen level is still loading.
        """
        with self._state:
            selector = selector or Selector()
            level = self._resolve(selector, priority, characters)
            slot = self.cache.bundle.slots.get(level.name)
            if level.name in self.cache.bundle.loading:
                raise UnavailableError(
                    f"level {level.name!r}, which this request chooses, is still loading; wait until the server's "
                    "health is SERVING"
                )
            if slot is None:
                raise self._not_loaded(level.name)
            slot.users += 1
            version = self.cache.bundle.manifest.version
            chosen_by = selector.chosen_by
            return Lease(
                slot, version, self._end, priority, call=call, model=self.name, code=code, chosen_by=chosen_by,
                clock=self._clock, times=self.cache.bundle.times,
            )  # fmt: skip

    def _not_loaded(self, name: str) -> LevelNotLoadedError:
        return LevelNotLoadedError(
            name,
            f"level {name!r} is not loaded; load it with `hmc admin load` (AdminService.LoadLevel), start the server "
            f"with it in --levels, or choose one that is: {', '.join(self.cache.bundle.slots)}",
        )

    def _end(self, slot: Slot) -> None:
        with self._state:
            slot.users -= 1
            slot.last_used = self._clock()
            self._state.notify_all()

    def _resolve(self, selector: Selector, priority: Priority, characters: int) -> Level:
        current = self.cache.bundle
        if self._closed:
            raise UnavailableError(SHUTTING_DOWN)
        if current.default not in current.slots and not (self._on_demand and self._started):
            raise UnavailableError("the server is still loading; wait until its health is SERVING")
        if selector.default_level or (selector.auto and not current.slots):
            return current.manifest.level(current.default)
        if selector.name is not None:
            return current.manifest.level(selector.name)
        if selector.auto:
            return current.auto[priority.interactive].choose(current.candidates(priority=priority))
        size = None if selector.latency_budget_ms is None else characters
        candidates = current.candidates(priority=priority, loadable_on=self._loadable_on, characters=size)
        return choose(selector, candidates)

    @property
    def _loadable_on(self) -> str | None:
        """The device for which levels are loaded when a request chooses them; None: they have to be loaded before."""
        return self._device if self.lazy else None

    # ---- status ----

    @property
    def failure(self) -> str | None:
        """Why the default level failed; None if it did not, or if it has answered a text since.

        `status` has the failures of all levels.
        """
        with self._state:
            slot = self.cache.bundle.slots.get(self.cache.bundle.default)
        return slot.translator.failure if slot else None

    def serving(self) -> tuple[str, dict[str, bool]]:
        """The name of the default level; and for each level of the bundle, whether it is loaded and has not failed."""
        with self._state:
            slots = self.cache.bundle.slots
            levels = self.cache.bundle.manifest.levels
            working = {name for name, slot in slots.items() if slot.translator.failure is None}
            return self.cache.bundle.default, {level.name: level.name in working for level in levels}

    def status(self) -> HostStatus:
        """The bundle and all its levels, loaded or not, in their order."""
        with self._state:
            current = self.cache.bundle
            slots = dict(self.cache.bundle.slots)
            standings = self._standings(self.cache.bundle)
        devices = sorted({slot.translator.device for slot in slots.values()})
        statuses = tuple(LevelStatus.read(current, slots, standing) for standing in standings)
        used = {use.device: use for slot in slots.values() for use in slot.translator.device_use}
        return HostStatus(
            current.manifest, current.path, ", ".join(devices), statuses, self.name, current.languages,
            tuple(used[name] for name in sorted(used)),
        )  # fmt: skip

    def _status(self, bundle: LoadedBundle, level: Level) -> LevelStatus:
        with self._state:
            slots = dict(bundle.slots)
            standings = self._standings(bundle)
        return LevelStatus.read(bundle, slots, next(x for x in standings if x.name == level.name))

    def _standings(self, bundle: LoadedBundle) -> list[Standing]:
        """All levels in their order. Those among which selectors choose are compared with each other alone."""
        levels = bundle.manifest.levels
        names = bundle.choosable(self._loadable_on)
        among = {x.name: x for x in order([level for level in levels if level.name in names])}
        return [among.get(x.name, x) for x in order(levels)]


def name_of(manifest: Manifest) -> str:
    """The name of a model without a given name: its languages, such as `en-de`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{manifest.source_language}-{manifest.target_language}")[:MAX_NAME]
    return name if NAME.fullmatch(name) else "model"
