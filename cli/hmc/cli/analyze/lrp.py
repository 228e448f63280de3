"""`hmc analyze lrp`: relevance of every head to what the model predicts."""

from __future__ import annotations

from hmc.cli.analyze.options import AsJson, Checkpoint, Data, Device, Forced, Out, Sentences


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    forced: Forced = False,
    sentences: Sentences = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the relevance of each head to the top-1 logit by layer-wise relevance propagation."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.roles import draw_lrp
    from hmc.training.analysis.relevance import lrp

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        return lrp.analyse(subject, text, forced=forced, progress=progress)

    carry_out(analyse, lrp.summary, draw_lrp, out, as_json)
