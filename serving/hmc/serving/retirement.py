"""Levels that serve no longer: freed once nobody uses them, while others serve, load and change."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

from hmc.serving.loaded import Slot


class Retirement:
    """Frees levels, each in a thread of its own. Calls must not overlap: whoever changes levels has a lock for that."""

    def __init__(self, state: threading.Condition, serving: Callable[[], list[Slot]]) -> None:
        """state: guards the users of slots, and is notified when one ends. serving: the levels that serve still, asked
        for with `state` held."""
        self._state, self._serving = state, serving
        self._threads: list[threading.Thread] = []

    def begin(self, slots: list[Slot]) -> None:
        """Empties the list: nothing else may hold the slots, so that they are freed when their thread lets go."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while slots:
            alone = [slots.pop()]
            thread = threading.Thread(target=self._free, args=(alone,), name=f"retire-{alone[0].level.name}")
            thread.start()
            self._threads.append(thread)

    def threads(self, level: str | None = None) -> list[threading.Thread]:
        """Those that are at work on levels of this name, or on any; to be joined."""
        return [thread for thread in self._threads if level is None or thread.name == f"retire-{level}"]

    def _free(self, slots: list[Slot]) -> None:
        with self._state:
            self._state.wait_for(lambda: slots[-1].users == 0)
        slots.pop().translator.close(drain=True)
        gc.collect()
        with self._state:
            left = self._serving()
        for slot in left[:1]:  # levels have their working memory in common
            slot.translator.rest()
