"""`hmc analyze attention`: attention maps of one sentence."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import INPUT, AsJson, Checkpoint, Device, Out


def command(
    checkpoint: Checkpoint,
    sentence: Annotated[str, typer.Argument(help="A sentence in the source language.")],
    out: Out,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this head, e.g. cross.0.3. Repeatable; default: encoder self-attention.", rich_help_panel=INPUT
        ),
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            help="Translation that the decoder reads; default: the model's own.", metavar="TEXT", rich_help_panel=INPUT
        ),
    ] = "",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Draw the attention maps of one sentence: every weight of the chosen heads."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis.attention import maps
    from hmc.training.analysis.common.per_head import parse_heads
    from hmc.training.analysis.common.result import Result
    from hmc.training.analysis.common.subject import Progress, load_subject
    from hmc.training.analysis.figures.roles import draw_attention

    def analyse(_: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        return maps.analyse(subject, sentence, parse_heads(head or [], subject.layout), reference)

    carry_out(analyse, maps.summary, draw_attention, out, as_json)
