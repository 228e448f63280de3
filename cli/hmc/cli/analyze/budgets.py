"""`hmc analyze budgets`: BLEU against open heads."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.artifact.precisions import PRECISIONS
from hmc.cli.analyze.options import INPUT, AsJson, Out


def command(
    bundles: Annotated[
        list[str],
        typer.Argument(help="Name of a series and its bundle, which was compiled with --eval.", metavar="NAME=BUNDLE…"),
    ],
    out: Out,
    precision: Annotated[
        str,
        typer.Option(help=f"Precision of the levels: {', '.join(PRECISIONS)}.", rich_help_panel=INPUT),
    ] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Plot BLEU against open heads, one series per bundle, with intervals."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import budgets, compare
    from hmc.training.analysis.figures.pruning import draw_budgets

    files = compare.parse_names(bundles)
    carry_out(lambda _: budgets.analyse(files, precision), budgets.summary, draw_budgets, out, as_json)
