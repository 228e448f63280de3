"""`hmc analyze compare`: results of several systems in one figure."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Out


def command(
    results: Annotated[
        list[str],
        typer.Argument(help="NAME=FILE, results of importance, groups or cumulative.", metavar="NAME=FILE…"),
    ],
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Put results of the same analysis on the same text side by side, e.g. baseline, Random-N and Impt-N."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import compare
    from hmc.training.analysis.figures import draw

    files = compare.parse_names(results)
    carry_out(lambda _: compare.analyse(files), compare.summary, draw.compare, out, as_json)
