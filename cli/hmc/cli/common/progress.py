"""Progress on standard error of steps, of translated lines and of compiled levels.

A terminal shows a spinner or a bar; a log gets plain lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from hmc.pipelines.progress import Progress

EVERY = 30.0
"""Seconds between two lines in a log."""


class Steps:
    """Call it with a description of each step when it begins."""

    def __init__(self, begin: Callable[[str], None], expect: Callable[[int], None] = lambda _: None) -> None:
        """begin: shows a step. expect: shows how many there will be."""
        self._begin = begin
        self.expect = expect

    def __call__(self, text: str) -> None:
        """A step begins."""
        self._begin(text)


@contextmanager
def steps(console: Console) -> Iterator[Steps]:
    """Yields what shows steps. On a terminal it is a bar. It shows the share and the time left once `expect` was called
    with the number of steps."""
    from rich.progress import Progress

    if not console.is_terminal:
        yield Steps(lambda text: _print(console, text))
        return
    with Progress(*_columns(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        begun = 0

        def begin(text: str) -> None:
            nonlocal begun
            progress.update(task, description=text, completed=begun)
            begun += 1

        yield Steps(begin, lambda total: progress.update(task, total=total))


def _columns() -> tuple[ProgressColumn, ...]:
    """A bar, its share, the present step, the time that is gone and the time left."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    return BarColumn(), TaskProgressColumn(), text, TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()


@contextmanager
def translating(
    console: Console, clock: Callable[[], float] = time.monotonic
) -> Iterator[tuple[Callable[[Progress], None], Callable[[str], None]]]:
    """Yields two functions: one to call with the progress, one with a description of each step before it."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bars

    if not console.is_terminal:
        yield _lines(console, clock), lambda text: _print(console, text)
        return
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None, status="")

        def report(found: Progress) -> None:
            bars.update(
                task, description="translating", completed=found.lines, total=found.total, status=_status(found)
            )

        yield report, lambda text: bars.update(task, description=text)


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
