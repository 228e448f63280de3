"""`hmc analyze profile`: pruning profiles of several checkpoints of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hmc.cli.analyze.options import (
    MEASURE,
    AsJson,
    BatchTokens,
    Beam,
    Data,
    Device,
    Out,
    RankData,
    Resamples,
    Seed,
    Sentences,
)

if TYPE_CHECKING:
    from hmc.training.analysis.common.subject import Subject, Text
    from hmc.training.analysis.masking.ranking import Ranking


def command(
    checkpoints: Annotated[list[Path], typer.Argument(help="Checkpoints of a run, earliest first.", metavar="CKPT…")],
    data: Data,
    out: Out,
    shares: Annotated[
        str, typer.Option(help="Shares of the heads to mask, with commas.", rich_help_panel=MEASURE)
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    rank_data: RankData = None,
    sentences: Sentences = 0,
    beam: Beam = 1,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask growing shares of the least important heads of several checkpoints: BLEU relative to all heads."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.subject import load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_profile
    from hmc.training.analysis.masking import profile
    from hmc.training.analysis.masking.ranking import RankBy

    try:
        numbers = [float(part) for part in shares.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidRequestError(f"--shares {shares!r}: write numbers with commas, e.g. 0.1,0.2") from error
    settings, rank_by = Settings(True, beam, resamples, seed, batch_tokens), RankBy(None, rank_data, sentences)

    def load(path: Path) -> tuple[Subject, Text, Ranking]:
        subject = load_subject(path, device)
        text = read_text(data, subject.languages, sentences)
        return subject, text, rank_by.rank(subject, text)

    carry_out(
        lambda progress: profile.analyse(checkpoints, load, settings, numbers, progress),
        profile.summary,
        draw_profile,
        out,
        as_json,
    )
