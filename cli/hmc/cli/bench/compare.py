"""`hmc bench compare`: what changed from one report to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WORSE = 3
"""The exit code for a measurement that was made, and is not good. 2 says that it could not be made."""


def command(
    before: Annotated[Path, typer.Argument(help="Report that `hmc bench -o` wrote.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="Report to compare with it.", metavar="B")],
    noise: Annotated[
        float, typer.Option(help="Changes of times up to this percentage count as noise.", metavar="PERCENT")
    ] = 5.0,
    bleu_noise: Annotated[
        float, typer.Option(help="Changes of BLEU up to this number of points count as noise.", metavar="BLEU")
    ] = 0.2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
) -> None:
    """Say what changed from report A to report B. The exit code is 3 if B is slower or scores lower, for CI.

    A time has changed if its 95 % interval excludes 0 and the change is beyond --noise; BLEU if its p-value is below
    0.05 and the change is beyond --bleu-noise. Both reports must cover the same sentences.
    """
    from hmc.benchmark.report.changes import compare, tables_of
    from hmc.benchmark.report.results import Report, json_text
    from hmc.cli.common.consoles import note, open_console

    changes = compare(Report.read(before), Report.read(after), noise=noise / 100, bleu_noise=bleu_noise)
    if as_json:
        typer.echo(json_text(changes.to_dict()), nl=False)
    else:
        console = open_console()
        console.print(tables_of(changes))
        note(console, "Worse: " + "; ".join(changes.worse) + "." if changes.worse else "Nothing is known to be worse.")
        if changes.unclear:
            note(console, "The intervals do not exclude it for " + "; ".join(changes.unclear) + ".")
    if changes.worse:
        raise SystemExit(WORSE)
