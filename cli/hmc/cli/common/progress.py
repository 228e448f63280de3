"""Progress on standard error of steps, of translated lines and of compiled levels.

A terminal shows a spinner or a bar; a log gets plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hmc.pipelines.progress import Steps, silent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn

    from hmc.pipelines.progress import Progress

EVERY = 30.0
"""Seconds between two lines in a log."""
LONG = 86_400.0
"""Seconds whose steps count for the time left: all of them, however long a step takes."""


@contextmanager
def steps(console: Console, *, log: bool = True) -> Iterator[Steps]:
    """Yields what shows steps. On a terminal it is a bar. It shows the share and the time left once `expect` was called
    with the number of steps. log: whether a log gets a line for each step."""
    if not (log or console.is_terminal):
        yield Steps(silent)
        return
    with translating(console) as (_, step):
        yield step


@contextmanager
def translating(
    console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Callable[[Progress], None], Steps]]:
    """Yields two functions: one to call with the progress, one with a description of each step before it."""
    from rich.progress import Progress as Bars

    if not console.is_terminal:
        yield _lines(console, clock), Steps(lambda text: _print(console, text))
        return
    with Bars(*_columns(), console=console, transient=True, speed_estimate_period=LONG) as bars:
        bar = _Bar(bars)
        yield bar.report, Steps(bar.step, bar.expect)


def _columns() -> tuple[ProgressColumn, ...]:
    """A bar, its share, the present step, the time that is gone and the time left."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    return BarColumn(), TaskProgressColumn(), text, TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()


class _Bar:
    """The bar of a terminal. It begins anew with everything that has a total of its own."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task = bars.add_task("starting", total=None)
        self._total: int | None = None
        self._begun = 0
        self._counts_lines = False

    def expect(self, total: int) -> None:
        """As many steps follow."""
        self._begin_anew(self._bars.tasks[0].description, total)

    def step(self, text: str) -> None:
        """A step begins. Its share is not known where no total was given, or more steps than that have begun."""
        if self._counts_lines or self._begun == self._total:
            self._begin_anew(text, None)
        self._bars.update(self._task, description=text, completed=self._begun, refresh=True)
        self._begun += 1

    def report(self, progress: Progress) -> None:
        """Lines are translated. Those of an earlier run have no part in the time left."""
        speed = f"  {progress.lines_per_second:,.0f} lines/s" if progress.lines_per_second else ""
        text = f"translating {progress.lines:,} of {progress.total:,}{speed}"
        if not self._counts_lines or not progress.lines_per_second:
            self._begin_anew(text, progress.total)
            self._counts_lines = True
        self._bars.update(self._task, description=text, completed=progress.lines, refresh=True)

    def _begin_anew(self, text: str, total: int | None) -> None:
        self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=total)
        self._total = total
        self._begun = 0
        self._counts_lines = False


def _lines(console: Console, clock: Callable[[], float]) -> Callable[[Progress], None]:
    last = clock()

    def report(found: Progress) -> None:
        nonlocal last
        if clock() - last >= EVERY or found.lines == found.total:
            last = clock()
            _print(console, f"translated {found.lines:,} of {found.total:,} lines  {_status(found)}".rstrip())

    return report


def _status(found: Progress) -> str:
    left = found.seconds_left
    return "" if left is None else f"{found.lines_per_second:,.0f} lines/s, {left / 60:.1f} min left"


def _print(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def level_steps(console: Console, total: int | None) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with `LEVEL: STEP` when a step begins.

    total: how often it will be called. None: not known.
    """
    if not console.is_terminal:
        yield _line_a_level(console)
        return
    with steps(console) as step:
        if total is not None:
            step.expect(total)
        yield step


def _line_a_level(console: Console) -> Callable[[str], None]:
    last = ""

    def step(now: str) -> None:
        nonlocal last
        level = now.partition(":")[0]
        if level != last:
            console.print(level, style="dim", highlight=False, markup=False, soft_wrap=True)
        last = level

    return step
