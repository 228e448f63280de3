"""Options that several subcommands share, in the panels of their help: input, measurement, output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hmc.training.analysis.masking.ranking import RankBy

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
        help="Rank heads by this result of `hmc analyze` importance, ablate, lrp or confidence, or by a score of this "
        "checkpoint (--rank-by; default importance).",
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

RankByName = Annotated[
    str | None,
    typer.Option(
        "--rank-by",
        help="Rank heads by this score of the checkpoint: gates, importance, ablation, relevance or confidence.",
        metavar="NAME",
        rich_help_panel=INPUT,
    ),
]
ImportanceWords = Annotated[
    str,
    typer.Option(
        "--importance",
        help="How I_h is measured, words with commas: absolute values of each sentence (default), token or batch; "
        "layer: normalised by layer; signed: no absolute value.",
        metavar="WORDS",
        rich_help_panel=MEASURE,
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
Save = Annotated[
    Path | None,
    typer.Option(
        help="Also write a copy of the checkpoint that contains this score of its heads, by which `hmc compile "
        "--rank-by` and `hmc analyze --rank-by` can rank them. The path of the checkpoint itself adds the score to it.",
        metavar="CKPT",
        rich_help_panel=OUTPUT,
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, not as a table.", rich_help_panel=OUTPUT)
]


def rank_by(scores: Path | None, rank_data: str | None, name: str | None, importance: str, sentences: int) -> RankBy:
    """What the options say of the ranking. Raises InvalidRequestError for unknown names, and options that exclude each
    other."""
    from hmc.artifact.checkpoint.extras import WRITTEN_BY
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.model.importance import Importance
    from hmc.training.analysis.masking.ranking import RankBy

    chosen = next((known for known in WRITTEN_BY if known == name), None)
    if name is not None and chosen is None:
        raise InvalidRequestError(f"--rank-by {name}: choose one of {', '.join(WRITTEN_BY)}")
    words = importance.split(",") if importance.strip() else []
    return RankBy(scores, rank_data, sentences, chosen, Importance.parse(words, "--importance:"))
