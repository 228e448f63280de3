"""`hmc analyze compare`: results of several systems in one figure."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Out


def command(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Name of a system and its result of importance, groups or cumulative.", metavar="NAME=FILE…"
        ),
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Compare results of one analysis on the same text, e.g. of baseline, Random-N and Impt-N."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import compare
    from hmc.training.analysis.figures.masking import draw_compare

    files = compare.parse_names(results)
    carry_out(lambda _: compare.analyse(files), compare.summary, draw_compare, out, as_json)
