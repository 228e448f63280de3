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
    headmask: Annotated[
        str | None,
        typer.Option(
            help="Mask heads in every update: random:18, important:18, a share random:12.5%, or some kinds "
            "random:6@encoder_self. The same as --set train.headmask=…",
        ),
    ] = None,
    layout: Annotated[
        Path | None,
        typer.Option(
            help="Train with this head layout from the first step: a checkpoint, or a JSON file of the open heads. "
            "The same as --set model.layout=…",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a translation model with a gate-ready Transformer, and keep the average of its best checkpoints."""
    import json

    from hmc.cli.outputs import check_run_folder
    from hmc.training.processes import is_first_process
    from hmc.training.recipe import load_recipe
    from hmc.training.trainer import train

    check_run_folder(out)
    given = {"train.headmask": headmask, "model.layout": layout}
    options = [f"{key}={json.dumps(str(value))}" for key, value in given.items() if value is not None]
    final = train(load_recipe(recipe, [*(overrides or []), *options]), out)
    if is_first_process():
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
            typer.echo(f"  {name}: {values}  (beam {scores['beam']}; {scores['bleu_signature']})")
