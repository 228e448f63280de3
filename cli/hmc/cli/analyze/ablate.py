"""`hmc analyze ablate`: each head masked on its own."""

from __future__ import annotations

from typing import Annotated

import typer

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
    head: Annotated[
        list[str] | None, typer.Option(help="Only this head, e.g. cross.0.3. Repeatable; default: all.")
    ] = None,
    sentences: Sentences = 0,
    bleu: Bleu = True,
    beam: Beam = 1,
    resamples: Resamples = 1000,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Mask each head on its own: the change in loss and BLEU, with intervals from a paired bootstrap."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import ablate
    from hmc.training.analysis.figures import draw
    from hmc.training.analysis.head_rows import parse_heads
    from hmc.training.analysis.measure import Settings
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject, read_text

    settings = Settings(bleu, beam, resamples, seed, batch_tokens)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        heads = parse_heads(head or [], subject.layout)
        return ablate.analyse(subject, read_text(data, subject.languages, sentences), settings, heads, progress)

    carry_out(analyse, ablate.summary, draw.ablate, out, as_json)
