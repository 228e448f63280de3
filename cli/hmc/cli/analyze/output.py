"""The end of every subcommand: data and figures into a folder, a table or JSON to standard output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, Subject
    from hmc.training.analysis.common.summary import Summary


def carry_out(
    analyse: Callable[[Progress], Result[Any]],
    summarise: Callable[[Result[Any]], Summary],
    draw: Callable[[Result[Any], Path], list[Path]],
    out: Path,
    as_json: bool,
) -> None:
    """Runs an analysis, writes its data and figures into `out`, and prints a table, or JSON with `as_json`.

    Progress goes to standard error. Raises InvalidRequestError before the analysis where `out` cannot be used.
    """
    import matplotlib  # noqa: F401  # fails now, not after the analysis, where it is missing

    from hmc.artifact.stopping import stoppable
    from hmc.cli.common.consoles import note, open_console
    from hmc.cli.common.outputs import check_run_folder
    from hmc.cli.common.progress import steps
    from hmc.training.analysis.common.result import write_result

    check_run_folder(out)  # a checkpoint has an importance.json of its own, which must not be overwritten
    kept = f"an analysis writes nothing to {out} before its end; the same command begins anew"
    with stoppable(lambda: kept), steps(open_console(stderr=True)) as progress:
        result = analyse(progress)
    for corpus in result.corpora:
        for reason in corpus.left_out:
            note(open_console(stderr=True), f"{corpus.name}: {reason}")
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        show(summarise(result))
    before = set(out.iterdir()) if out.is_dir() else set[Path]()
    written = [write_result(result, out), *draw(result, out)]
    if replaced := [path.name for path in written if path in before]:
        note(
            open_console(stderr=True), f"--out {out}: what was there is replaced: {', '.join(replaced)}", style="yellow"
        )
    if not as_json:
        typer.echo(f"wrote {', '.join(map(str, written))}")


def carry_out_and_save(
    checkpoint: Path,
    device: str,
    analyse: Callable[[Subject, Progress], Result[Any]],
    summarise: Callable[[Result[Any]], Summary],
    draw: Callable[[Result[Any], Path], list[Path]],
    out: Path,
    as_json: bool,
    save: Path | None,
) -> None:
    """As `carry_out`, for an analysis of one checkpoint. The scores of its heads are saved in the checkpoint `save`."""
    from hmc.training.analysis.common.scores import check_target, save_scores
    from hmc.training.analysis.common.subject import load_subject

    if save is not None:
        check_target(save, checkpoint, out)

    def analyse_and_save(progress: Progress) -> Result[Any]:
        subject = load_subject(checkpoint, device)
        result = analyse(subject, progress)
        if save is not None:
            save_scores(subject, result, save)
        return result

    carry_out(analyse_and_save, summarise, draw, out, as_json)


def show(summary: Summary) -> None:
    """Prints a short table and its notes."""
    from rich.table import Table

    from hmc.cli.common.consoles import note, open_console

    console = open_console()
    table = Table(title=summary.title, title_justify="left")
    for number, column in enumerate(summary.columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in summary.rows:
        table.add_row(*row)
    console.print(table, markup=False)
    for line in summary.notes:
        note(console, line)
