"""`hmc analyze importance`: I_h of every head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.analyze.options import OUTPUT, AsJson, Checkpoint, Data, Device, Out, Sentences


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Also write a copy of the checkpoint that contains the importance.",
            metavar="CKPT",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure head importance I_h with one backward pass per sentence: head map, histogram, mean and variance."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_importance
    from hmc.training.analysis.masking import importance

    if save is not None:
        importance.check_copy(save, out)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        result = importance.analyse(subject, read_text(data, subject.languages, sentences), progress)
        if save is not None:
            importance.save_copy(subject, result, save)
        return result

    carry_out(analyse, importance.summary, draw_importance, out, as_json)
