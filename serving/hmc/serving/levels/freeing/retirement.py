"""Frees levels that no longer serve. Each one is freed as soon as its last request has ended."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

from hmc.serving.levels.slots import Slot

log = logging.getLogger(__name__)


class Retirement:
    """Frees each level in a thread of its own, so that other levels can serve, load and change meanwhile.

    Calls of `begin` and `freed` must not overlap: the host makes them under the lock of its changes.
    """

    def __init__(self, state: threading.Condition, serving: Callable[[], list[Slot]]) -> None:
        """state: guards `Slot.users`, and is notified when a request ends. serving: returns the levels that still
        serve; it is called with `state` held."""
        self._state, self._serving = state, serving
        self._freed: dict[str, list[Future[None]]] = {}

    def begin(self, slots: list[Slot]) -> list[Future[None]]:
        """Starts freeing the levels in `slots`, and empties the list. Returns a future for each level, done when the
        level is free; it has the error of a level that cannot be freed.

        The caller must hold no other reference to them: a level's memory returns to the system when the last one goes.
        """
        begun = []
        while slots:
            alone = [slots.pop()]
            name, freed = alone[0].level.name, Future[None]()
            freed.set_running_or_notify_cancel()  # a caller that stops waiting cannot cancel it
            self._freed[name] = [f for f in self._freed.get(name, []) if not f.done()] + [freed]
            begun.append(freed)
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
            slots.pop().translator.close(drain=True)
            gc.collect()
            with self._state:
                left = self._serving()
            for slot in left[:1]:  # the levels on a CPU share their working memory: one call shrinks it
                slot.translator.release_memory()
        except BaseException as error:
            log.exception("level %s could not be freed", name)
            freed.set_exception(error)
        else:
            freed.set_result(None)
