"""`hmc analyze all-but-one`: every head kept as the only one of its layer."""

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
    """Mask all heads of a layer but one: the change in loss for each head kept, and in BLEU for the best one."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_all_but_one
    from hmc.training.analysis.masking import all_but_one

    settings = Settings(bleu, beam, resamples, seed, batch_tokens)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        return all_but_one.analyse(subject, read_text(data, subject.languages, sentences), settings, progress)

    carry_out(analyse, all_but_one.summary, draw_all_but_one, out, as_json)
