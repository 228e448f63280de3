"""`hmc analyze ablate`: every head masked on its own."""

from __future__ import annotations

from hmc.cli.analyze.options import (
    AsJson,
    BatchTokens,
    Beam,
    Bleu,
    Checkpoint,
    Data,
    Device,
    Heads,
    Out,
    Resamples,
    Seed,
    Sentences,
)


def command(
    checkpoint: Checkpoint,
    data: Data,
    out: Out,
    head: Heads = None,
    sentences: Sentences = 0,
    bleu: Bleu = True,
    beam: Beam = 1,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask each head on its own: the change in loss and BLEU, with 95 % intervals and p-values."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.per_head import parse_heads
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_ablate
    from hmc.training.analysis.masking import ablate

    settings = Settings(bleu, beam, resamples, seed, batch_tokens)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        heads = parse_heads(head or [], subject.layout)
        return ablate.analyse(subject, read_text(data, subject.languages, sentences), settings, heads, progress)

    carry_out(analyse, ablate.summary, draw_ablate, out, as_json)
