"""`hmc export`: a checkpoint in, a Hugging Face MarianMT directory out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint that `hmc train`, `prune` or `import` wrote.", metavar="CHECKPOINT")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="MarianMT directory to write.", metavar="DIR")],
    masked: Annotated[
        bool, typer.Option("--masked", help="Accept a pruned checkpoint: its closed heads are written as zeros.")
    ] = False,
    zero_start: Annotated[
        bool,
        typer.Option(
            "--zero-start",
            help="Change the model so that its decoder starts from a zero embedding, as CTranslate2 assumes.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a checkpoint as a MarianMT model for Transformers, and for CTranslate2 if it has one vocabulary."""
    import json

    from hmc.artifact.checkpoint.checkpoint import load_checkpoint
    from hmc.artifact.marian.layout import FORMAT
    from hmc.artifact.marian.weights import starts_from_zero
    from hmc.artifact.marian.writer import export_marian
    from hmc.artifact.storage.formats import check_replaceable
    from hmc.cli.common.outputs import say_replaced

    check_replaceable(out, FORMAT, [checkpoint])
    say_replaced(out)
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
            "The model has separate vocabularies for source and target. Transformers can read it. CTranslate2 cannot: "
            "its converter knows one vocabulary."
        )
    elif not result["starts_from_zero_embedding"]:
        typer.echo(
            "The embedding of <pad>, with which the decoder starts, is not zero. CTranslate2 takes it for zero and "
            "would translate differently: for CTranslate2, export with --zero-start."
        )
