"""Progress of translating many lines: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from hmc.pipelines.progress import Progress

EVERY = 30.0
"""Seconds between two lines in a log."""


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
