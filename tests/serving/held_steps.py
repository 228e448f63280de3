"""Decoder steps that a test holds: what takes milliseconds with a tiny model cannot end before the test has gone on."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from tests.serving.fakes import GUARD_S


class HeldSteps:
    """Holds every decoder step in this process between `hold` and `release`."""

    def __init__(self) -> None:
        self._waits, self._go_on = threading.Event(), threading.Event()
        self._go_on.set()

    def hold(self) -> None:
        """No further step begins."""
        self._waits.clear()
        self._go_on.clear()

    def wait(self) -> None:
        """Returns when a step is held: its sentences run, and the others wait in the queue."""
        assert self._waits.wait(GUARD_S), "no step began"

    def release(self) -> None:
        """Lets the step that is held and all after it run."""
        self._go_on.set()

    def pass_by(self) -> None:
        """Called before each step, by its worker."""
        if not self._go_on.is_set():
            self._waits.set()
            assert self._go_on.wait(GUARD_S), "the steps were never released"


def holding(held: HeldSteps, step: Any) -> Any:
    """A worker's method `step` that passes by `held` first."""

    def waiting(self: Any, modes: Iterable[Any]) -> Any:
        held.pass_by()
        return step(self, modes)

    return waiting
