"""`hmc import`: a model of another program in, a checkpoint out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A directory of Transformers (MarianMT, M2M100, NLLB), a folder or .zip of Marian's own files, a "
            "directory of CTranslate2, or a name on the Hugging Face hub (OWNER/MODEL).",
            metavar="MODEL",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Checkpoint directory to write.", metavar="DIR")],
    source_language: Annotated[
        str | None, typer.Option(help="Source language. Default: source_lang of tokenizer_config.json.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language. Default: target_lang of tokenizer_config.json.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Commit, tag or branch of a model on the hub. Default: its newest commit.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a translation model, such as OPUS-MT, into a checkpoint for `hmc prune` and `hmc compile`."""
    import json
    from functools import partial

    from hmc.artifact.checkpoint.checkpoint import FORMAT, save_checkpoint
    from hmc.artifact.marian.generation import ignored
    from hmc.artifact.model.architecture import parameter_count
    from hmc.artifact.storage.formats import check_replaceable
    from hmc.cli.common.consoles import note, open_console
    from hmc.cli.common.outputs import say_replaced
    from hmc.cli.common.progress import steps
    from hmc.pipelines.importing import import_model, located, lossy_note, notes_of

    console = open_console(stderr=True)
    found = located(model, revision, partial(note, console))
    check_replaceable(out, FORMAT, [found.path])
    say_replaced(out)
    with steps(console, log=False) as step:
        step.expect(2)
        step(f"reading {found.path}")
        checkpoint = import_model(found.path, source_language=source_language, target_language=target_language)
        if found.revision:
            checkpoint.config.provenance.update({"from": model, "revision": found.revision})
        step(f"writing {out}")
        save_checkpoint(checkpoint, out)
    config = checkpoint.config
    arch = checkpoint.architecture
    decoding = config.provenance["generation"]
    result = {
        "checkpoint": str(out),
        "source_language": config.source_language,
        "target_language": config.target_language,
        "architecture": arch.model_dump(),
        "heads": checkpoint.layout.total,
        "parameters": parameter_count(arch, checkpoint.layout),
        "tokenizer": "joint" if isinstance(checkpoint.tokenizer, bytes) else "marian",
        "generation": decoding,
        "generation_ignored": ignored(decoding, arch),
        "lossy": lossy_note(config),
    }
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    typer.echo(
        f"{out}: {config.source_language} to {config.target_language}, {arch.encoder_layers}+{arch.decoder_layers} "
        f"layers, {result['heads']} heads, {result['parameters']:,} parameters"
        + ("" if arch.source_vocab_size is None else ", a vocabulary for each side")
    )
    for said in notes_of(config):
        typer.echo(said)
