"""`hmc analyze roles`: positional, syntactic and rare-word heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Checkpoint, Data, Device, Out, Sentences


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    trees: Annotated[
        Path | None,
        typer.Option(
            help="Gold trees in the source language (CoNLL-U, plain or .gz), for syntactic heads.", metavar="FILE"
        ),
    ] = None,
    frequencies: Annotated[
        str | None,
        typer.Option(
            help="Training text whose source side says which tokens are rare: one file, or named as --data.",
            metavar="CORPUS",
        ),
    ] = None,
    frequent: Annotated[
        int, typer.Option(help="Leave out sentences whose rarest token is among so many most frequent ones.")
    ] = 500,
    forced: Annotated[
        bool, typer.Option("--forced", help="The decoder reads the references, not the model's own translations.")
    ] = False,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Roles of heads: positional in all three kinds; syntactic and rare words in encoder self-attention."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import roles
    from hmc.training.analysis.conllu import read_trees
    from hmc.training.analysis.figures import roles as draw
    from hmc.training.analysis.rare_words import token_counts
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    def analyse(progress: Progress) -> Result:
        treebank = roles.Trees.of(str(trees), read_trees(trees)) if trees else None
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        rare = None
        if frequencies:
            counts = token_counts(frequencies, subject.vocabulary, subject.languages)
            rare = roles.Frequencies(counts, frequencies, frequent)
        return roles.analyse(subject, text, treebank, rare, forced=forced, progress=progress)

    carry_out(analyse, roles.summary, draw.roles, out, as_json)
