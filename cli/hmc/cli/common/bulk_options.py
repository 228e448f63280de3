"""Options of `hmc translate --engine`."""

from __future__ import annotations

from typing import Annotated

import typer

PANEL = "Many lines, with --engine"

Engine = Annotated[
    str | None,
    typer.Option(
        help="Translate a corpus of any size into the folder --out: `local` in this process, `ray` as tasks of Ray. "
        "Both write the same files, and the same command goes on with a run that was stopped.",
        metavar="local|ray",
        rich_help_panel=PANEL,
    ),
]
Field = Annotated[
    str | None,
    typer.Option(
        help="The field of JSONL, or the column of Parquet (.parquet), that holds the text.",
        metavar="NAME",
        rich_help_panel=PANEL,
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="What is written: text, or jsonl or parquet with number, text, translation, score, level and error of "
        "each line.",
        metavar="text|jsonl|parquet",
        show_default="text",
        rich_help_panel=PANEL,
    ),
]
ShardLines = Annotated[
    int | None,
    typer.Option(help="Lines in each file of translations.", metavar="N", show_default="2000", rich_help_panel=PANEL),
]
