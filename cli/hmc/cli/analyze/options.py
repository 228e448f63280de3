"""Options that several subcommands share, in the panels of their help: input, measurement, output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

INPUT, MEASURE, OUTPUT = "Input", "Measurement", "Output"
"""Panels of the help text."""

Checkpoint = Annotated[Path, typer.Argument(help="A checkpoint directory.", metavar="CKPT")]

Data = Annotated[
    str,
    typer.Option(
        help="Parallel text: 'SRC TGT', 'FILE.tsv', 'FILE.jsonl', 'FILE.parquet' or 'hub:NAME'.",
        metavar="CORPUS",
        rich_help_panel=INPUT,
    ),
]
Sentences = Annotated[
    int, typer.Option(help="Use only the first N sentence pairs; 0: all.", metavar="N", rich_help_panel=INPUT)
]
Heads = Annotated[
    list[str] | None,
    typer.Option("--head", help="Only this head, e.g. cross.0.3. Repeatable; default: all.", rich_help_panel=INPUT),
]
Forced = Annotated[
    bool,
    typer.Option(
        "--forced", help="The decoder reads the references, not the model's own translations.", rich_help_panel=INPUT
    ),
]
Scores = Annotated[
    Path | None,
    typer.Option(
        help="Rank heads by this importance.json of `hmc analyze importance`, or by a checkpoint's own importance.",
        metavar="FILE",
        rich_help_panel=INPUT,
    ),
]
RankData = Annotated[
    str | None,
    typer.Option(
        help="Rank heads by I_h on this text; default: the text of --data.", metavar="CORPUS", rich_help_panel=INPUT
    ),
]

Groups = Annotated[int, typer.Option(help="Number of groups that the heads are divided into.", rich_help_panel=MEASURE)]
Bleu = Annotated[
    bool,
    typer.Option("--bleu/--no-bleu", help="Also score BLEU, which needs translations.", rich_help_panel=MEASURE),
]
Beam = Annotated[int, typer.Option(help="Beam size of the translations; 1 is greedy.", rich_help_panel=MEASURE)]
Resamples = Annotated[
    int,
    typer.Option(
        help="Bootstrap resamples of the intervals, and random trials of the test for p-values.",
        rich_help_panel=MEASURE,
    ),
]
Seed = Annotated[
    int,
    typer.Option(help="Seed of the resamples and trials, from 1.", envvar="SACREBLEU_SEED", rich_help_panel=MEASURE),
]
BatchTokens = Annotated[
    int,
    typer.Option(help="Most padded positions of one forward pass, over all its masks.", rich_help_panel=MEASURE),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", rich_help_panel=MEASURE)]

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="Folder for the JSON data and the figures (SVG and PNG).",
        metavar="DIR",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, not as a table.", rich_help_panel=OUTPUT)
]
