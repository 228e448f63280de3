"""`hmc analyze all-but-one`: one head left in a layer."""

from __future__ import annotations

from hmc.cli.analyze.options import (
    AsJson,
    BatchTokens,
    Beam,
    Bleu,
    Checkpoint,
    Data,
    Device,
    Out,
    Resamples,
    Seed,
    Sentences,
)


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    sentences: Sentences = 0,
    bleu: Bleu = True,
    beam: Beam = 1,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask all heads of a layer but one: the change in loss for each, and in BLEU for the best."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import all_but_one
    from hmc.training.analysis.figures import draw
    from hmc.training.analysis.measure import Settings
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    settings = Settings(bleu, beam, resamples, seed, batch_tokens)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        return all_but_one.analyse(subject, read_text(data, subject.languages, sentences), settings, progress)

    carry_out(analyse, all_but_one.summary, draw.all_but_one, out, as_json)
