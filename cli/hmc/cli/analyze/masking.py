"""`hmc analyze` importance, ablate, all-but-one, groups, cumulative, profile: what the loss of heads costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hmc.cli.analyze.options import (
    MEASURE,
    AsJson,
    BatchTokens,
    Beam,
    Bleu,
    Checkpoint,
    Data,
    Device,
    Groups,
    Heads,
    ImportanceWords,
    Out,
    RankByName,
    RankData,
    Resamples,
    Save,
    Scope,
    Scores,
    Seed,
    Sentences,
    beam_size,
    rank_by,
)
from hmc.cli.common.options import numbers, opt

if TYPE_CHECKING:
    from hmc.training.analysis.common.subject import Subject, Text
    from hmc.training.analysis.masking.ranking import Ranking


def importance(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    words: ImportanceWords = "",
    save: Save = None,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure head importance I_h with one backward pass per sentence: head map, histogram, mean and variance."""
    from hmc.cli.analyze.output import carry_out_and_save
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, read_text
    from hmc.training.analysis.figures.masking import draw_importance
    from hmc.training.analysis.masking import importance

    how = rank_by(None, None, None, words, 0).how

    def analyse(subject: Subject, progress: Progress) -> Result[Any]:
        return importance.analyse(subject, read_text(data, subject.languages, sentences), how, progress)

    carry_out_and_save(checkpoint, device, analyse, importance.summary, draw_importance, out, as_json, save)


def ablate(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    head: Heads = None,
    save: Save = None,
    sentences: Sentences = 0,
    bleu: Bleu = True,
    beam: Beam = None,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask each head on its own: the change in loss and BLEU, with 95 % intervals and p-values."""
    from hmc.cli.analyze.output import carry_out_and_save
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.result import Result, parse_heads
    from hmc.training.analysis.common.subject import Progress, read_text
    from hmc.training.analysis.figures.masking import draw_ablate
    from hmc.training.analysis.masking import ablate

    settings = Settings(bleu, beam_size(beam, bleu=bleu), resamples, seed, batch_tokens)

    def analyse(subject: Subject, progress: Progress) -> Result[Any]:
        heads = parse_heads(head or [], subject.layout)
        return ablate.analyse(subject, read_text(data, subject.languages, sentences), settings, heads, progress)

    carry_out_and_save(checkpoint, device, analyse, ablate.summary, draw_ablate, out, as_json, save)


def all_but_one(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    sentences: Sentences = 0,
    bleu: Bleu = True,
    beam: Beam = None,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask all heads of a layer but one: the change in loss for each head kept, and in BLEU for the best one."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_all_but_one
    from hmc.training.analysis.masking import all_but_one

    settings = Settings(bleu, beam_size(beam, bleu=bleu), resamples, seed, batch_tokens)

    def analyse(progress: Progress) -> Result[Any]:
        subject = load_subject(checkpoint, device)
        return all_but_one.analyse(subject, read_text(data, subject.languages, sentences), settings, progress)

    carry_out(analyse, all_but_one.summary, draw_all_but_one, out, as_json)


def _masking_command(name: str, description: str) -> Callable[..., None]:
    """The command of the analysis `name`. Both analyses have the same options and the same arguments."""

    def command(
        checkpoint: Checkpoint,
        data: Data,
        out: Out,
        groups: Groups = 8,
        scope: Scope = "all",
        scores: Scores = None,
        rank_data: RankData = None,
        name_of_score: RankByName = None,
        words: ImportanceWords = "",
        sentences: Sentences = 0,
        bleu: Bleu = True,
        beam: Beam = None,
        resamples: Resamples = 1000,
        seed: Seed = 12345,
        batch_tokens: BatchTokens = 8192,
        device: Device = "auto",
        as_json: AsJson = False,
    ) -> None:
        from hmc.cli.analyze.output import carry_out
        from hmc.training.analysis.common.measure import Settings
        from hmc.training.analysis.common.result import Result
        from hmc.training.analysis.common.subject import Progress, load_subject, read_text
        from hmc.training.analysis.figures.masking import draw_cumulative, draw_groups
        from hmc.training.analysis.masking import cumulative as cumulative_analysis
        from hmc.training.analysis.masking import groups as groups_analysis

        parts: dict[str, tuple[Any, Any]] = {
            "groups": (groups_analysis, draw_groups),
            "cumulative": (cumulative_analysis, draw_cumulative),
        }
        analysis, draw = parts[name]
        settings = Settings(bleu, beam_size(beam, bleu=bleu), resamples, seed, batch_tokens)
        by = rank_by(scores, rank_data, name_of_score, words, sentences, scope)

        def analyse(progress: Progress) -> Result[Any]:
            subject = load_subject(checkpoint, device)
            heads = sum(head.kind in by.kinds for head in subject.layout.heads())
            groups_analysis.check_groups(groups, heads)  # fails now, not after ranking the heads
            text = read_text(data, subject.languages, sentences)
            ranking = by.rank(subject, text, progress)
            result: Result[Any] = analysis.analyse(subject, text, ranking, settings, groups, progress)
            return result

        carry_out(analyse, analysis.summary, draw, out, as_json)

    command.__doc__ = description
    return command


groups = _masking_command(
    "groups", "Divide the heads into groups by importance and mask one group at a time: loss and BLEU."
)
cumulative = _masking_command(
    "cumulative",
    "Mask group after group, most important first and least important first: two curves with 95 % bands.",
)


def profile(
    checkpoints: Annotated[list[Path], typer.Argument(help="Checkpoints of a run, earliest first.", metavar="CKPT…")],
    data: Data,
    out: Out,
    shares: Annotated[
        str, opt(MEASURE, "Shares of the heads to mask, with commas.")
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    rank_data: RankData = None,
    name_of_score: RankByName = None,
    words: ImportanceWords = "",
    sentences: Sentences = 0,
    beam: Beam = None,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask growing shares of the least important heads of several checkpoints: BLEU relative to all heads."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.subject import load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_profile
    from hmc.training.analysis.masking import profile

    parts = numbers("--shares", shares, float, "0.1,0.2")
    settings = Settings(True, beam_size(beam, bleu=True), resamples, seed, batch_tokens)
    by = rank_by(None, rank_data, name_of_score, words, sentences)

    def load(path: Path) -> tuple[Subject, Text, Ranking]:
        subject = load_subject(path, device)
        text = read_text(data, subject.languages, sentences)
        return subject, text, by.rank(subject, text)

    carry_out(
        lambda progress: profile.analyse(checkpoints, load, settings, parts, progress),
        profile.summary,
        draw_profile,
        out,
        as_json,
    )
