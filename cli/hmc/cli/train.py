"""`hmc train`: a recipe in, a checkpoint out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    recipe: Annotated[Path, typer.Argument(help="TOML recipe; see recipes/ for the papers' settings.")],
    out: Annotated[Path, typer.Option(help="Run folder. Running the same command again resumes the run.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, e.g. --set train.steps=2000. Repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a translation model with a gate-ready Transformer, and keep the average of its best checkpoints."""
    from hmc.training.recipe import load_recipe
    from hmc.training.trainer import train

    final = train(load_recipe(recipe, overrides or []), out)
    report([final], as_json)


def report(paths: list[Path], as_json: bool) -> None:
    """Prints checkpoints with the dev scores they were saved with."""
    import json

    from hmc.artifact.checkpoint import load_checkpoint

    checkpoints = [(path, load_checkpoint(path)) for path in paths]
    if as_json:
        rows = [{"checkpoint": str(p), "heads": c.layout.total, "metrics": c.metrics} for p, c in checkpoints]
        typer.echo(json.dumps(rows, indent=1))
        return
    for path, checkpoint in checkpoints:
        typer.echo(f"{path}: {checkpoint.layout.total} heads")
        for name, scores in checkpoint.metrics.items():
            values = f"BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}"
            typer.echo(f"  {name}: {values}  ({scores['bleu_signature']})")
