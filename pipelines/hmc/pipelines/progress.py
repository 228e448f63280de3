"""How far a job is: lines, speed, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True)
class Progress:
    """A report on the way."""

    lines: int
    """Lines that are done, those of an earlier run included."""
    total: int
    lines_per_second: float
    """Speed of this run; 0 before its first line."""

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the seconds that are left; None before the first line."""
        return (self.total - self.lines) / self.lines_per_second if self.lines_per_second else None


Line = TypeVar("Line")
Report = Callable[[Progress], None]
Step = Callable[[str], None]
"""Called with a description of each step when it begins."""


def silent(_: object) -> None:
    """Reports nothing."""


class Steps:
    """Call it with a description of each step when it begins."""

    def __init__(self, begin: Step, expect: Callable[[int], None] = silent) -> None:
        """begin: shows a step. expect: shows how many steps follow, from the next one on."""
        self._begin = begin
        self.expect = expect

    def __call__(self, text: str) -> None:
        """A step begins."""
        self._begin(text)


Phase = Callable[[], AbstractContextManager[tuple[Report, Steps]]]
"""Opens progress: a function to call with how far a job is, and one with a description of each step."""


def quiet() -> AbstractContextManager[tuple[Report, Steps]]:
    """A phase whose progress is not shown."""
    return nullcontext((silent, Steps(silent)))


class Meter:
    """Counts lines and reports, at most once in `interval` seconds."""

    def __init__(
        self, total: int, report: Report, interval: float = 0.2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total = total
        self.report = report
        self.interval = interval
        self.clock = clock
        self.skipped = self.done = 0
        self.began = self.last = clock()

    def skip(self, lines: int) -> None:
        """Counts lines that an earlier run did."""
        self.skipped += lines
        self._say()

    def left(
        self, shards: Iterable[tuple[int, list[Line]]], missing: Collection[int]
    ) -> Iterator[tuple[int, list[Line]]]:
        """Yields the numbered shards that are missing, and counts the lines of all others as done by an earlier run."""
        for number, lines in shards:
            if number in missing:
                yield number, lines
            else:
                self.skip(len(lines))

    def add(self, lines: int = 1) -> None:
        """Counts lines that this run did."""
        self.done += lines
        if self.clock() - self.last >= self.interval or self.done + self.skipped == self.total:
            self._say()

    def _say(self) -> None:
        self.last = self.clock()
        passed = self.last - self.began
        speed = self.done / passed if passed > 0 else 0.0
        self.report(Progress(self.skipped + self.done, self.total, speed))
