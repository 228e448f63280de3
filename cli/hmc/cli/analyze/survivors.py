"""`hmc analyze survivors`: the heads left after pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Out


def command(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Pruned checkpoints, of several budgets or seeds.", metavar="CKPT…")
    ],
    out: Out,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="importance.json of the model before pruning: how many survivors are among its most important heads.",
            metavar="FILE",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the heads left by kind and layer, by budget, and how far seeds agree on them."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import survivors
    from hmc.training.analysis.figures import pruning

    carry_out(lambda _: survivors.analyse(checkpoints, scores), survivors.summary, pruning.survivors, out, as_json)
