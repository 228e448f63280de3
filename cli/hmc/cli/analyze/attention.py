"""`hmc analyze attention`: attention maps of one sentence."""

from __future__ import annotations

from typing import Annotated

import typer

from hmc.cli.analyze.options import AsJson, Checkpoint, Device, Out


def command(
    checkpoint: Checkpoint,
    sentence: Annotated[str, typer.Argument(help="A sentence in the source language.")],
    out: Out,
    head: Annotated[
        list[str] | None,
        typer.Option(help="Only this head, e.g. cross.0.3. Repeatable; default: encoder self-attention."),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="What the decoder reads; default: the model's own translation.", metavar="TEXT")
    ] = "",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Attention maps: every weight of chosen heads on one sentence."""
    from hmc.cli.analyze.output import carry_out
    from hmc.training.analysis import attention_maps
    from hmc.training.analysis.figures import roles as draw
    from hmc.training.analysis.head_rows import parse_heads
    from hmc.training.analysis.result import Result
    from hmc.training.analysis.subject import Progress, load_subject

    def analyse(_: Progress) -> Result:
        subject = load_subject(checkpoint, device)
        return attention_maps.analyse(subject, sentence, parse_heads(head or [], subject.layout), reference)

    carry_out(analyse, attention_maps.summary, draw.attention, out, as_json)
