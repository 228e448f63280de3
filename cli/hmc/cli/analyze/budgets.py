"""`hmc analyze budgets`: BLEU against open heads."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Out


def command(
    bundles: Annotated[
        list[str],
        typer.Argument(help="NAME=BUNDLE, a series each; compiled with --eval.", metavar="NAME=BUNDLE…"),
    ],
    out: Out,
    precision: Annotated[str, typer.Option(help="Of the levels: fp32, int8, int4, fp16 or bf16.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Put the scores of bundles beside each other: BLEU against open heads, with intervals."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import budgets, compare
    from hmc.training.analysis.figures import pruning

    files = compare.parse_names(bundles)
    carry_out(lambda _: budgets.analyse(files, precision), budgets.summary, pruning.budgets, out, as_json)
