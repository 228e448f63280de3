"""How every subcommand ends: data and figures in a folder, a table or JSON on standard output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hmc.training.analysis.result import Result, Summary
    from hmc.training.analysis.subject import Progress


def carry_out(
    analyse: Callable[[Progress], Result],
    summarise: Callable[[Result], Summary],
    draw: Callable[[Result, Path], list[Path]],
    out: Path,
    as_json: bool,
) -> None:
    """Runs an analysis with its progress on standard error, writes what it found to `out`, and prints it."""
    import matplotlib  # noqa: F401  # what is missing is said before the work, not after it
    from rich.console import Console

    from hmc.cli.outputs import check_run_folder
    from hmc.cli.progress import steps
    from hmc.training.analysis.result import write_result

    check_run_folder(out)  # a checkpoint's own importance.json among others
    with steps(Console(stderr=True)) as progress:
        result = analyse(progress)
    written = [write_result(result, out), *draw(result, out)]
    if as_json:
        typer.echo(result.to_json(), nl=False)
        return
    show(summarise(result))
    typer.echo(f"wrote {', '.join(map(str, written))}")


def show(summary: Summary) -> None:
    """Prints a short table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 200)  # a file or a pipe has room for every column
    table = Table(title=summary.title, title_justify="left")
    for number, column in enumerate(summary.columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in summary.rows:
        table.add_row(*row)
    console.print(table, markup=False)
    for note in summary.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)
