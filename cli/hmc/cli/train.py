"""`hmc train`: a recipe in, a checkpoint out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.common.options import DRY_RUN


def command(
    recipe: Annotated[
        Path,
        typer.Argument(
            help="TOML file with the data, the model and the training settings; recipes/ has some.", metavar="RECIPE"
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Run folder. The same command again resumes an interrupted run.", metavar="DIR"
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a setting of the recipe, such as --set train.steps=2000. Repeatable.",
            metavar="SECTION.KEY=VALUE",
        ),
    ] = None,
    headmask: Annotated[
        str | None,
        typer.Option(
            help="Mask heads in every update: random:18, important:18, a share of all heads random:12.5%, or heads of "
            "one kind random:6@encoder_self. The same as --set train.headmask=…",
        ),
    ] = None,
    layout: Annotated[
        Path | None,
        typer.Option(
            help="Train from the first step with only the heads of this checkpoint, or of this JSON file. The same as "
            "--set model.layout=…",
            metavar="PATH",
        ),
    ] = None,
    compile_loss: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="On CUDA: let torch.compile write the kernels of an update. The same as --set run.compile=true",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a translation model. The result, DIR/final, is the average of the best checkpoints of the run."""
    import json

    from hmc.cli.common.consoles import show_checkpoints, show_plan
    from hmc.cli.common.outputs import check_run_folder
    from hmc.training.runs.processes import is_first_process
    from hmc.training.runs.recipe import load_recipe
    from hmc.training.trainer.trainer import plan_training, train

    check_run_folder(out)
    given = {"train.headmask": headmask, "model.layout": layout}
    options = [f"{key}={json.dumps(str(value))}" for key, value in given.items() if value is not None]
    options += ["run.compile=true"] if compile_loss else []
    loaded = load_recipe(recipe, [*(overrides or []), *options])
    if dry_run:
        show_plan(plan_training(loaded, out), as_json)
        return
    final = train(loaded, out)
    if is_first_process():
        show_checkpoints([final], as_json)
