"""Options that several subcommands share, in the panels of their help: input, measurement, output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.common.options import check_unused, opt

if TYPE_CHECKING:
    from hmc.training.analysis.masking.ranking import RankBy

INPUT = "Input"
MEASURE = "Measurement"
OUTPUT = "Output"
"""Panels of the help text."""

Checkpoint = Annotated[Path, typer.Argument(help="A checkpoint directory.", metavar="CKPT")]

Data = Annotated[
    str,
    opt(INPUT, "Parallel text: 'SRC TGT', 'FILE.tsv', 'FILE.jsonl', 'FILE.parquet' or 'hub:NAME'.", metavar="CORPUS"),
]
Sentences = Annotated[int, opt(INPUT, "Use only the first N sentence pairs; 0: all.", metavar="N")]
Heads = Annotated[list[str] | None, opt(INPUT, "Only this head, e.g. cross.0.3. Repeatable; default: all.", "--head")]
Forced = Annotated[bool, opt(INPUT, "The decoder reads the references, not the model's own translations.", "--forced")]
Scores = Annotated[
    Path | None,
    opt(
        INPUT,
        "Rank heads by this result of `hmc analyze` importance, ablate, lrp or confidence, or by a score of this "
        "checkpoint (--rank-by; default importance).",
        metavar="FILE",
    ),
]
RankData = Annotated[
    str | None, opt(INPUT, "Rank heads by I_h on this text; default: the text of --data.", metavar="CORPUS")
]

RankByName = Annotated[
    str | None,
    opt(
        INPUT,
        "Rank heads by this score of the checkpoint: gates, importance, ablation, relevance or confidence.",
        "--rank-by",
        metavar="NAME",
    ),
]
ImportanceWords = Annotated[
    str,
    opt(
        MEASURE,
        "Estimator of I_h, as words with commas. By default it takes the absolute value of each sentence; token takes "
        "it of each token, batch of the whole batch, and signed takes none. layer normalises by layer.",
        "--importance",
        metavar="WORDS",
    ),
]

Groups = Annotated[int, opt(MEASURE, "Number of groups that the heads are divided into.")]
Scope = Annotated[
    str, opt(MEASURE, "Kinds of heads to mask: all; or some of encoder_self, decoder_self, cross, separated by commas.")
]
Bleu = Annotated[bool, opt(MEASURE, "Also score BLEU, which needs translations.", "--bleu/--no-bleu")]
Beam = Annotated[int | None, opt(MEASURE, "Beam size of the translations; 1 is greedy.", show_default="1")]
Resamples = Annotated[
    int, opt(MEASURE, "Bootstrap resamples of the intervals, and random trials of the test for p-values.")
]
Seed = Annotated[int, opt(MEASURE, "Seed of the resamples and trials, from 1.", envvar="SACREBLEU_SEED")]
BatchTokens = Annotated[
    int, opt(MEASURE, "Largest number of padded positions of one forward pass, over all its masks.")
]
Device = Annotated[str, opt(MEASURE, "auto, cpu, cuda or cuda:N.")]

Out = Annotated[
    Path, opt(OUTPUT, "Folder for the JSON data and the figures (SVG and PNG).", "--out", "-o", metavar="DIR")
]
Save = Annotated[
    Path | None,
    opt(
        OUTPUT,
        "Also write a copy of the checkpoint with this score of its heads, so that `hmc compile --rank-by` and `hmc "
        "analyze --rank-by` can rank heads by it. With the checkpoint's own path, the score is added to the "
        "checkpoint.",
        metavar="CKPT",
    ),
]
AsJson = Annotated[bool, opt(OUTPUT, "Print the result as JSON, not as a table.", "--json")]


def beam_size(beam: int | None, *, bleu: bool, without: str = "--no-bleu") -> int:
    """The beam. Raises InvalidRequestError if it is given although nothing is translated because of `without`."""
    if not bleu:
        check_unused(f"is for translations, and {without} makes none: leave this option out", beam=beam)
    return 1 if beam is None else beam


def rank_by(
    scores: Path | None, rank_data: str | None, name: str | None, importance: str, sentences: int, scope: str = "all"
) -> RankBy:
    """The ranking that the options choose. Raises InvalidRequestError for unknown names, and options that exclude each
    other."""
    from hmc.artifact.checkpoint.extras import WRITTEN_BY
    from hmc.artifact.errors import InvalidRequestError
    from hmc.artifact.model.budgets import parse_kinds
    from hmc.artifact.model.importance import Importance
    from hmc.training.analysis.masking.ranking import RankBy

    chosen = next((known for known in WRITTEN_BY if known == name), None)
    if name is not None and chosen is None:
        raise InvalidRequestError(f"--rank-by {name}: choose one of {', '.join(WRITTEN_BY)}")
    words = importance.split(",") if importance.strip() else []
    how = Importance.parse(words, "--importance:")
    kinds = parse_kinds(scope, "--scope")
    return RankBy(scores, rank_data, sentences, chosen, how, kinds)
