"""Progress of `hmc compile` on standard error: a bar on a terminal, one line for each level in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn


@contextmanager
def level_steps(console: Console, total: int | None) -> Iterator[Callable[[str], None]]:
    """Yields a function to call with `LEVEL: STEP` when a step begins.

    total: how often it will be called. None shows a spinner in place of the bar.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        yield _line_a_level(console)
        return
    text = TextColumn("{task.description}", markup=False)
    columns: list[ProgressColumn] = (
        [SpinnerColumn(), text] if total is None else [BarColumn(), MofNCompleteColumn(), text]
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total)
        started = 0

        def step(now: str) -> None:
            nonlocal started
            progress.update(task, description=now, completed=started)
            started += 1

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
