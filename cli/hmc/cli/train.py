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
    _report([final], as_json)


def _report(paths: list[Path], as_json: bool) -> None:
    """Prints checkpoints with the dev scores they were saved with."""
    import json

    from hmc.artifact.checkpoint import load_checkpoint

    results = [
        {"checkpoint": str(p), "heads": (c := load_checkpoint(p)).layout.total, "metrics": c.metrics} for p in paths
    ]
    if as_json:
        typer.echo(json.dumps(results, indent=1))
        return
    for result in results:
        typer.echo(f"{result['checkpoint']}: {result['heads']} heads")
        for name, scores in result["metrics"].items():
            typer.echo(f"  {name}: BLEU {scores['bleu']:.2f}  chrF {scores['chrf']:.2f}  ({scores['bleu_signature']})")
