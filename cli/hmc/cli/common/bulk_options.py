"""Options of `hmc translate --engine`."""

from __future__ import annotations

from typing import Annotated

from hmc.cli.common.options import opt

PANEL = "Many lines, with --engine"

Engine = Annotated[
    str | None,
    opt(
        PANEL,
        "Translate a corpus of any size into the folder --out: `local` in this process, `ray` as tasks of Ray. "
        "Both write the same files, and the same command goes on with a run that was stopped.",
        metavar="local|ray",
    ),
]
Field = Annotated[
    str | None,
    opt(PANEL, "The field of JSONL, or the column of Parquet (.parquet), that holds the text.", metavar="NAME"),
]
Format = Annotated[
    str | None,
    opt(
        PANEL,
        "What is written: text, or jsonl or parquet with number, text, translation, score, level and error of "
        "each line.",
        "--format",
        metavar="text|jsonl|parquet",
        show_default="text",
    ),
]
ShardLines = Annotated[int | None, opt(PANEL, "Lines in each file of translations.", metavar="N", show_default="2000")]
