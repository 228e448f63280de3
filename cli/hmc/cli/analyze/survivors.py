"""`hmc analyze survivors`: the heads left after pruning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.analyze.options import INPUT, AsJson, Out


def command(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Pruned checkpoints, of several budgets or seeds.", metavar="CKPT…")
    ],
    out: Out,
    scores: Annotated[
        Path | None,
        typer.Option(
            help="importance.json of the model before pruning: counts survivors among its most important heads.",
            metavar="FILE",
            rich_help_panel=INPUT,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the heads left by kind, layer and budget, and the heads that seeds share."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import survivors
    from hmc.training.analysis.figures.pruning import draw_survivors

    carry_out(lambda _: survivors.analyse(checkpoints, scores), survivors.summary, draw_survivors, out, as_json)
