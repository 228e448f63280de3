"""`hmc analyze importance`: I_h of every head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Checkpoint, Data, Device, Out, Sentences


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    save: Annotated[
        Path | None, typer.Option(help="Write a copy of the checkpoint with the importance in it.", metavar="CKPT")
    ] = None,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Head importance I_h by one backward pass a sentence: a head map, its histogram, mean and variance."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import importance
    from hmc.training.analysis.figures import draw
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    if save is not None:
        importance.check_copy(save, out)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        result = importance.analyse(subject, read_text(data, subject.languages, sentences), progress)
        if save is not None:
            importance.save_copy(subject, result, save)
        return result

    carry_out(analyse, importance.summary, draw.importance, out, as_json)
