"""Started by test_failing_processes.py in each of two processes; each writes what it saw to `rank-N.json`.

The first argument is a JSON description with a recipe, a folder and what goes wrong: `loss` makes the loss of the
second process NaN in update 2, `evaluation` makes the first process fail at the first evaluation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hmc.artifact import HmcError
from hmc.training import Recipe, TrainingRun
from hmc.training.runs.updater import SummedLoss


def break_loss(rank: int) -> None:
    """The second loss of the second process is NaN."""
    forward, count = SummedLoss.forward, 0

    def broken(self: SummedLoss, *fields: object) -> torch.Tensor:
        nonlocal count
        count += 1
        found = forward(self, *fields)  # type: ignore[arg-type]
        assert isinstance(found, torch.Tensor)
        return found * float("nan") if rank == 1 and count == 2 else found

    SummedLoss.forward = broken  # type: ignore[assignment, method-assign]


def main() -> None:
    description = json.loads(Path(sys.argv[1]).read_text())
    run = TrainingRun(Recipe.model_validate(description["recipe"]), Path(description["out"]))
    rank, error = run.fabric.global_rank, ""
    if description["fault"] == "loss":
        break_loss(rank)
    else:

        def fail(log: object) -> None:
            raise HmcError("the disk is full")

        run.evaluate = fail  # type: ignore[method-assign]
    try:
        run.run()
    except HmcError as raised:
        error = str(raised)
    weights = {name: value.double().sum().item() for name, value in run.model.state_dict().items()}
    Path(description["out"]).with_name(f"rank-{rank}.json").write_text(json.dumps({"error": error, "sums": weights}))


if __name__ == "__main__":
    main()
