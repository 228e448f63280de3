"""Options that several subcommands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[Path, typer.Argument(help="A checkpoint directory.", metavar="CKPT")]
Data = Annotated[str, typer.Option(help="Parallel text: 'SRC TGT', 'FILE.tsv' or 'hub:NAME'.", metavar="CORPUS")]
Out = Annotated[Path, typer.Option(help="Folder for the JSON data and the figures (SVG and PNG).", metavar="DIR")]
Sentences = Annotated[int, typer.Option(help="Use only so many sentence pairs, the first ones; 0: all.")]
Bleu = Annotated[bool, typer.Option("--bleu/--no-bleu", help="Score BLEU too, not only the loss: it needs decoding.")]
Beam = Annotated[int, typer.Option(help="Beam size; 1 is greedy.")]
Resamples = Annotated[int, typer.Option(help="Of the bootstrap over sentences, for the intervals.")]
Seed = Annotated[int, typer.Option(help="Of the bootstrap.")]
BatchTokens = Annotated[int, typer.Option(help="Padded positions of a forward pass, over all the masks in it.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, not as a table.")]
Scores = Annotated[
    Path | None,
    typer.Option(
        help="Rank heads by this importance.json of `hmc analyze importance`, or by a checkpoint's own importance.",
        metavar="FILE",
    ),
]
RankData = Annotated[
    str | None, typer.Option(help="Rank heads by I_h on this text; default: the text of --data.", metavar="CORPUS")
]
Groups = Annotated[int, typer.Option(help="Groups that the heads are divided into.")]
