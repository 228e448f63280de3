"""The rules of scheduling, as arithmetic: which sentences start, and which batches run."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.engine.decoding.job import Mode

UNLIMITED = 1 << 62
"""More rows than any batch has."""


class AdmissionPolicy:
    """When waiting sentences start, at a worker with `max_rows` rows."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows

    def saves_rows(self, free: int, waiting: int, most: int = UNLIMITED) -> bool:
        """Whether free rows stay free for now, because sentences that are encoded together take less time than one by
        one. So it is while waiting sentences need more rows than are free, and less than a quarter of the rows is free.
        most: rows in all, if fewer than the worker has.
        """
        return waiting > free and free < min(most, self._max_rows) // 4

    def holds_back(self, free: int, waiting: int, interactive: int, most: int = UNLIMITED) -> bool:
        """Whether nothing starts now. waiting: rows that all waiting sentences need. interactive: rows that the
        interactive ones of them need; if these rows are free, nothing is held back. most: see `saves_rows`."""
        return self.saves_rows(free, waiting, most) and not 0 < interactive <= free


class TimeSlices:
    """Which batches run the next step. While both interactive and other batches run, the two kinds alternate: one runs,
    and then the other for about as long."""

    def __init__(self) -> None:
        self.remaining_s = 0.0
        """Seconds that interactive batches may run before the others do."""

    def choose(self, running: Sequence[Mode]) -> list[Mode]:
        """Those of `running` that run the next step."""
        interactive = [mode for mode in running if mode.interactive]
        if not interactive or len(interactive) == len(running):
            self.remaining_s = 0.0
            return list(running)
        return interactive if self.remaining_s > 0 else [mode for mode in running if not mode.interactive]

    def count(self, chosen: Sequence[Mode], seconds: float) -> None:
        """The chosen batches ran for so long."""
        self.remaining_s += -seconds if all(mode.interactive for mode in chosen) else seconds
