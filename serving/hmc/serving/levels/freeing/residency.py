"""Which levels of a host are idle, and how long; takes idle ones out of service."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from hmc.serving.levels.freeing.retirement import Retirement
from hmc.serving.levels.freeing.room import Resident
from hmc.serving.levels.slots import LoadedBundle, Slot

log = logging.getLogger(__name__)


class Residency:
    """The loaded levels of one host, as those who need their memory see them.

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
        self._model, self._state, self._current, self._retirement = model, state, current, retirement
        self._pinned, self._clock = pinned, clock
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
