"""`hmc analyze trajectory`: the gates during pruning."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Out


def command(
    files: Annotated[
        list[str],
        typer.Argument(help="Name of a run of hmc prune and its trajectory.json.", metavar="NAME=FILE…"),
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Plot how gates closed: expected open heads by kind, the budget, and gates that are still undecided."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import compare, trajectory
    from hmc.training.analysis.figures.pruning import draw_trajectory

    named = compare.parse_names(files)
    for file in named.values():
        if file.resolve() == (out / "trajectory.json").resolve():
            raise InvalidRequestError(f"--out {out} would overwrite the input {file}; give another folder")
    carry_out(lambda _: trajectory.analyse(named), trajectory.summary, draw_trajectory, out, as_json)
