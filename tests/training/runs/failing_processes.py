"""Started by test_processes.py in each of two processes; each writes what it saw to `rank-N.json`.

The first argument is a JSON description with a recipe and a folder. Two runs of the recipe go wrong: in `loss`,
the loss of the second process is NaN in update 2; in `evaluation`, the first process fails at the first evaluation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hmc.artifact import HmcError
from hmc.training import Recipe, TrainingRun
from hmc.training.runs.log import RunLog
from hmc.training.runs.updater import SummedLoss


@contextmanager
def broken_loss(rank: int) -> Iterator[None]:
    """In the block, the second loss of the second process is NaN."""
    forward, count = SummedLoss.forward, 0

    def broken(self: SummedLoss, *fields: object) -> torch.Tensor:
        nonlocal count
        count += 1
        found = forward(self, *fields)  # type: ignore[arg-type]
        assert isinstance(found, torch.Tensor)
        return found * float("nan") if rank == 1 and count == 2 else found

    SummedLoss.forward = broken  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        SummedLoss.forward = forward  # type: ignore[method-assign]


def fail(log: RunLog, *, due: bool) -> None:
    """An evaluation."""
    raise HmcError("the disk is full")


def seen(run: TrainingRun) -> dict[str, object]:
    """Makes a run. Returns the error that ended it, and the sums of its weights."""
    error = ""
    try:
        run.run()
    except HmcError as raised:
        error = str(raised)
    return {
        "error": error,
        "sums": {name: value.double().sum().item() for name, value in run.model.state_dict().items()},
    }


def main() -> None:
    description = json.loads(Path(sys.argv[1]).read_text())
    recipe, folder = Recipe.model_validate(description["recipe"]), Path(description["folder"])
    run = TrainingRun(recipe, folder / "loss")
    with broken_loss(run.fabric.global_rank):
        found = {"loss": seen(run)}
    run = TrainingRun(recipe, folder / "evaluation")
    run.evaluate = fail  # type: ignore[method-assign]
    found["evaluation"] = seen(run)
    (folder / f"rank-{run.fabric.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
