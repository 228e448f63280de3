"""`hmc import`: a Hugging Face MarianMT directory in, a checkpoint out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    model: Annotated[
        Path, typer.Argument(help="MarianMT directory in the layout of OPUS-MT, with safetensors.", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Checkpoint directory to write.", metavar="DIR")],
    source_language: Annotated[
        str | None, typer.Option(help="Source language. Default: source_lang of tokenizer_config.json.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Target language. Default: target_lang of tokenizer_config.json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Convert a MarianMT model, such as OPUS-MT, into a checkpoint for `hmc prune` and `hmc compile`."""
    import json

    from hmc.artifact.checkpoint.checkpoint import FORMAT, save_checkpoint
    from hmc.artifact.marian.generation import REQUEST_OPTIONS, ignored
    from hmc.artifact.model.architecture import parameter_count
    from hmc.artifact.storage.formats import check_replaceable
    from hmc.pipelines.importing.forms import import_model

    check_replaceable(out, FORMAT, [model])
    checkpoint = import_model(model, source_language=source_language, target_language=target_language)
    save_checkpoint(checkpoint, out)
    config, arch = checkpoint.config, checkpoint.architecture
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
    }
    if as_json:
        typer.echo(json.dumps(result, indent=1))
        return
    typer.echo(
        f"{out}: {config.source_language} to {config.target_language}, {arch.encoder_layers}+{arch.decoder_layers} "
        f"layers, {result['heads']} heads, {result['parameters']:,} parameters"
        + ("" if arch.source_vocab_size is None else ", a vocabulary for each side")
    )
    options = [f"{option} {decoding[name]}" for name, option in REQUEST_OPTIONS.items() if name in decoding]
    if options:
        typer.echo(f"The model's own decoding defaults, which every request has to give: {', '.join(options)}.")
    if result["generation_ignored"]:
        typer.echo(f"Settings of the model that HMC ignores: {', '.join(ignored(decoding, arch))}.")
