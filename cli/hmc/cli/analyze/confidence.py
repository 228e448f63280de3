"""`hmc analyze confidence`: the largest attention weight of every head."""

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
    """Measure the confidence of each head: its largest attention weight, the end of sentence left out."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.attention import confidence
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.roles import draw_confidence

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        text = read_text(data, subject.languages, sentences)
        return confidence.analyse(subject, text, forced=forced, progress=progress)

    carry_out(analyse, confidence.summary, draw_confidence, out, as_json)
