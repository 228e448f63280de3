"""`hmc export`: a checkpoint in, a Hugging Face MarianMT directory out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint that train, prune or import wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="MarianMT directory to write.")],
    masked: Annotated[
        bool, typer.Option("--masked", help="Write the closed heads of a pruned checkpoint as zeros.")
    ] = False,
    zero_start: Annotated[
        bool,
        typer.Option("--zero-start", help="Write a model that starts its decoder from zeros, as CTranslate2 does."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a checkpoint as a MarianMT model, for Transformers and, if it has one vocabulary, CTranslate2."""
    import json

    from hmc.artifact.checkpoint import load_checkpoint
    from hmc.artifact.formats import check_replaceable
    from hmc.artifact.marian.layout import FORMAT
    from hmc.artifact.marian.writer import export_marian
    from hmc.artifact.marian.zero_start import starts_from_zero

    check_replaceable(out, FORMAT, [checkpoint])
    loaded = load_checkpoint(checkpoint)
    export_marian(loaded, out, masked=masked, zero_start=zero_start)
    whole = loaded.architecture.full_layout().total
    result = {
        "model": str(out),
        "heads": whole,
        "masked_heads": whole - loaded.layout.total,
        "starts_from_zero_embedding": zero_start or starts_from_zero(loaded),
        "vocabularies": 1 if loaded.architecture.source_vocab_size is None else 2,
    }
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    typer.echo(f"{out}: {whole} heads, {result['masked_heads']} of them masked")
    if result["vocabularies"] == 2:
        typer.echo(
            "Sources and targets have vocabularies of their own: for Transformers. CTranslate2's converter knows one "
            "vocabulary and cannot translate with this model."
        )
    elif not result["starts_from_zero_embedding"]:
        typer.echo(
            "The embedding of <pad>, which starts the decoder, is not zero. Transformers uses it; CTranslate2 starts "
            "from zeros, so it would translate otherwise: give --zero-start for it."
        )
