"""`hmc analyze correlate`: the effect of every head on two texts."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import INPUT, MEASURE, AsJson, BatchTokens, Beam, Checkpoint, Device, Out, Seed, Sentences


def command(
    checkpoint: Checkpoint,
    data: Annotated[
        list[str],
        typer.Option(
            help="Parallel text: 'SRC TGT', 'FILE.tsv', 'FILE.jsonl', 'FILE.parquet' or 'hub:NAME'. Give it twice.",
            metavar="CORPUS",
            rich_help_panel=INPUT,
        ),
    ],
    out: Out,
    effect: Annotated[
        str,
        typer.Option(
            help="loss or bleu: the change when the head is masked alone; importance: its I_h.", rich_help_panel=MEASURE
        ),
    ] = "loss",
    sentences: Sentences = 0,
    beam: Beam = 1,
    seed: Seed = 12345,
    batch_tokens: BatchTokens = 8192,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Correlate the effect of each head on two texts: scatter plot, Pearson's and Spearman's coefficient."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.across import correlate
    from hmc.training.analysis.common.measure import Settings
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject, read_text
    from hmc.training.analysis.figures.masking import draw_correlate

    settings = Settings(beam=beam, seed=seed, batch_tokens=batch_tokens)

    def analyse(progress: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        texts = [read_text(corpus, subject.languages, sentences) for corpus in data]
        return correlate.analyse(subject, texts, effect, settings, progress)

    carry_out(analyse, correlate.summary, draw_correlate, out, as_json)
