"""`hmc analyze trajectory`: gates in the course of pruning."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Out


def command(
    files: Annotated[
        list[str],
        typer.Argument(help="NAME=FILE, trajectory.json of runs of hmc prune.", metavar="NAME=FILE…"),
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Show how gates closed: expected open heads by kind, the budget, gates that have not settled."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import compare, trajectory
    from hmc.training.analysis.figures import pruning

    named = compare.parse_names(files)
    for file in named.values():
        if file.resolve() == (out / "trajectory.json").resolve():
            raise InvalidRequestError(f"--out {out} would write over {file}, which is read; give a folder of its own")
    carry_out(lambda _: trajectory.analyse(named), trajectory.summary, pruning.trajectory, out, as_json)
