"""Options that the commands share which translate, score, list and administer levels: where, and at which level."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WHERE = "Where"

SERVER = typer.Option(help="Server to ask.", metavar="HOST:PORT", rich_help_panel=WHERE)
"""For a command that needs one: `Annotated[str, SERVER]`."""
Server = Annotated[str | None, SERVER]
Bundle = Annotated[Path | None, typer.Option(help="Bundle to load instead.", metavar="DIR", rich_help_panel=WHERE)]
Token = Annotated[
    str | None, typer.Option(help="Token that the server wants.", envvar="HMC_TOKEN", rich_help_panel=WHERE)
]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="PEM authorities to trust: connect with TLS.", metavar="FILE", rich_help_panel=WHERE),
]
Device = Annotated[str, typer.Option(help="With --bundle: auto, cpu, cuda or cuda:N.", rich_help_panel=WHERE)]
Threads = Annotated[int, typer.Option(help="With --bundle: threads; 0: one per physical core.", rich_help_panel=WHERE)]

# The fields of `hmc.serving.selection.Selector`, of which a command line may give one.
Level = Annotated[str | None, typer.Option(help="Level to work at; default: the default level.", rich_help_panel=WHERE)]
MaxHeads = Annotated[
    int | None, typer.Option(help="Or: the best level with at most this many heads.", rich_help_panel=WHERE)
]
MaxBleuDrop = Annotated[
    float | None,
    typer.Option(help="Or: the smallest level measured to lose at most this.", metavar="BLEU", rich_help_panel=WHERE),
]
LatencyBudgetMs = Annotated[
    int | None,
    typer.Option(help="Or: the best level with a 95th percentile within this.", metavar="MS", rich_help_panel=WHERE),
]
Auto = Annotated[
    bool, typer.Option("--auto", help="Or: the best level under the server's load.", rich_help_panel=WHERE)
]
