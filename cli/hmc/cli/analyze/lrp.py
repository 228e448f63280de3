"""`hmc analyze lrp`: relevance of every head to what the model predicts."""

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
    """Relevance of each head to the top-1 logit by layer-wise relevance propagation, over all generation steps."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import lrp
    from hmc.training.analysis.figures import roles as draw
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        return lrp.analyse(subject, text, forced=forced, progress=progress)

    carry_out(analyse, lrp.summary, draw.lrp, out, as_json)
