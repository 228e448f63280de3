"""`hmc compile`: checkpoints in, a bundle of slim ONNX levels out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hmc.compiler.bundle_writer import LevelRequest


def command(
    checkpoints: Annotated[
        list[str], typer.Argument(help="One CHECKPOINT for all budgets, or NAME=CHECKPOINT pairs, one level each.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle directory to write.")],
    target_heads: Annotated[str, typer.Option(help="Budgets for one checkpoint, e.g. 144,72,36.")] = "",
    precision: Annotated[
        str, typer.Option(help="fp32, int8 (both for CPU), fp16 (for CUDA); several with commas.")
    ] = "fp32",
    calibrate: Annotated[
        Path | None, typer.Option(help="Source sentences for int8 scales; a few hundred lines.")
    ] = None,
    evaluate: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--eval", help="SRC REF: score every level and write it into the manifest."),
    ] = None,
    beam: Annotated[int, typer.Option(help="Beam size of --eval.")] = 4,
    test_set: Annotated[
        str | None, typer.Option(help="Name of the --eval test set; default: the file's, less its suffixes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Remove closed heads from the weights, write encoder and decoder graphs per level, check them, and bundle them."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from hmc.artifact.bundle import read_manifest
    from hmc.artifact.errors import InvalidRequestError
    from hmc.benchmark.text import read_sentences
    from hmc.compiler.bundle_writer import compile_bundle

    console = Console(stderr=True)
    requests = parse_requests(checkpoints, target_heads)
    precisions = [part.strip() for part in precision.split(",") if part.strip()]
    if unknown := [p for p in precisions if p not in ("fp32", "int8", "fp16")]:
        raise InvalidRequestError(f"--precision {unknown[0]!r}: choose fp32, int8, fp16, or several with commas")
    sentences = [line for line in read_sentences(calibrate) if line.strip()] if calibrate else []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("compile")

        def show(text: str) -> None:
            progress.update(task, description=text)

        compile_bundle(
            requests,
            out,
            precisions=precisions,  # type: ignore[arg-type]
            calibration=sentences,
            progress=show,
        )
        if evaluate:
            from hmc.benchmark.quality import measure_quality, record_quality

            record_quality(out, measure_quality(out, *evaluate, beam=beam, test_set=test_set, progress=show))
    manifest = read_manifest(out)
    if as_json:
        typer.echo(manifest.model_dump_json(indent=1))
        return
    typer.echo(f"{out}: version {manifest.version}, {manifest.source_language} to {manifest.target_language}")
    for level in manifest.levels:
        quality = f"  BLEU {level.quality.bleu:.2f} ({level.quality.bleu_delta:+.2f})" if level.quality else ""
        size = f"{level.parameters:>12,} parameters  {level.bytes / 2**20:7.1f} MiB"
        typer.echo(f"  {level.name:12} {level.heads:4} heads  {level.precision}  {size}{quality}")


def parse_requests(checkpoints: list[str], target_heads: str) -> list[LevelRequest]:
    """Command-line words → level requests. Raises InvalidRequestError."""
    from hmc.artifact.errors import InvalidRequestError
    from hmc.compiler.bundle_writer import LevelRequest

    named = [c for c in checkpoints if "=" in c]
    if named and (len(named) != len(checkpoints) or target_heads):
        raise InvalidRequestError("give either one CHECKPOINT with --target-heads, or NAME=CHECKPOINT pairs without it")
    if named:
        return [LevelRequest(Path(path), name=name) for name, _, path in (c.partition("=") for c in named)]
    if len(checkpoints) != 1:
        raise InvalidRequestError("several checkpoints need names: full=A h36=B")
    try:
        targets: list[int | None] = [int(part) for part in target_heads.split(",") if part.strip()]
    except ValueError as error:
        raise InvalidRequestError(f"--target-heads {target_heads!r}: write whole numbers, e.g. 144,72,36") from error
    return [LevelRequest(Path(checkpoints[0]), target) for target in targets or [None]]
