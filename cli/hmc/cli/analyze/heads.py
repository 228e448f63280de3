"""`hmc analyze` confidence, lrp, roles, attention: what each head attends to, and how relevant it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hmc.cli.analyze.options import INPUT, MEASURE, AsJson, Checkpoint, Data, Device, Forced, Out, Save, Sentences
from hmc.cli.common.options import opt


def _score_command(name: str, description: str) -> Callable[..., None]:
    """The command of the analysis `name`, which gives every head a score. Both have the same options."""

    def command(
        checkpoint: Checkpoint,
        data: Data,
        out: Out,
        forced: Forced = False,
        save: Save = None,
        sentences: Sentences = 0,
        device: Device = "auto",
        as_json: AsJson = False,
    ) -> None:
        from hmc.cli.analyze.output import carry_out_and_save
        from hmc.training.analysis import relevance
        from hmc.training.analysis.attention import confidence
        from hmc.training.analysis.common.result import Result
        from hmc.training.analysis.common.subject import Progress, Subject, read_text
        from hmc.training.analysis.figures.roles import draw_confidence, draw_lrp

        def analyse(subject: Subject, progress: Progress) -> Result[Any]:
            text = read_text(data, subject.languages, sentences)
            result: Result[Any] = analysis.analyse(subject, text, forced=forced, progress=progress)
            return result

        parts: dict[str, tuple[Any, Any]] = {
            "confidence": (confidence, draw_confidence),
            "lrp": (relevance, draw_lrp),
        }
        analysis, draw = parts[name]
        carry_out_and_save(checkpoint, device, analyse, analysis.summary, draw, out, as_json, save)

    command.__doc__ = description
    return command


confidence = _score_command(
    "confidence", "Measure the confidence of each head: its largest attention weight, the end of sentence left out."
)
lrp = _score_command(
    "lrp", "Measure the relevance of each head to the top-1 logit by layer-wise relevance propagation."
)


def roles(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    trees: Annotated[
        Path | None,
        opt(INPUT, "Gold trees in the source language (CoNLL-U, plain or .gz), for syntactic heads.", metavar="FILE"),
    ] = None,
    frequencies: Annotated[
        str | None,
        opt(
            INPUT,
            "Training text whose source side decides which tokens are rare: one file, or named as --data.",
            metavar="CORPUS",
        ),
    ] = None,
    frequent: Annotated[
        int | None,
        opt(
            MEASURE,
            "With --frequencies: leave out sentences whose rarest token is among the N most frequent ones.",
            metavar="N",
            needs="frequencies",
            show_default="500",
        ),
    ] = None,
    forced: Forced = False,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find roles of heads: positional in all three kinds; syntactic and rare words in encoder self-attention."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.roles import draw_roles
    from hmc.training.analysis.roles import roles
    from hmc.training.analysis.roles.conllu import read_trees
    from hmc.training.analysis.roles.rare_words import FREQUENT, token_counts

    def analyse(progress: Progress) -> Result[Any]:
        treebank = roles.Trees.named(str(trees), read_trees(trees)) if trees else None
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        rare = None
        if frequencies:
            counts = token_counts(frequencies, subject.vocabulary, subject.languages)
            rare = roles.Frequencies(counts, frequencies, FREQUENT if frequent is None else frequent)
        return roles.analyse(subject, text, treebank, rare, forced=forced, progress=progress)

    carry_out(analyse, roles.summary, draw_roles, out, as_json)


def attention(
    checkpoint: Checkpoint,
    sentence: Annotated[str, typer.Argument(help="A sentence in the source language.")],
    out: Out,
    head: Annotated[
        list[str] | None, opt(INPUT, "Only this head, e.g. cross.0.3. Repeatable; default: encoder self-attention.")
    ] = None,
    reference: Annotated[
        str, opt(INPUT, "Translation that the decoder reads; default: the model's own.", metavar="TEXT")
    ] = "",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw the attention maps of one sentence: every weight of the chosen heads."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.attention import maps
    from hmc.training.analysis.common.result import Result, parse_heads
    from hmc.training.analysis.common.subject import Progress, load_subject
    from hmc.training.analysis.figures.roles import draw_attention

    def analyse(_: Progress) -> Result[Any]:
        subject = load_subject(checkpoint, device)
        return maps.analyse(subject, sentence, parse_heads(head or [], subject.layout), reference)

    carry_out(analyse, maps.summary, draw_attention, out, as_json)
