"""`hmc analyze confidence`: the largest attention weight of every head."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Checkpoint, Data, Device, Out, Sentences


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    forced: Annotated[
        bool, typer.Option("--forced", help="The decoder reads the references, not the model's own translations.")
    ] = False,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Confidence of each head: its largest attention weight, averaged over tokens, end of sentence left out."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import confidence
    from hmc.training.analysis.figures import roles as draw
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        return confidence.analyse(subject, text, forced=forced, progress=progress)

    carry_out(analyse, confidence.summary, draw.confidence, out, as_json)
