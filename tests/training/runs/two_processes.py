"""Started by test_processes.py in each of two processes; makes the runs of a JSON description one after the other.

Each entry names a recipe, a folder, and the update at which the run first breaks off and then resumes (0: none).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hmc.artifact.model.ffn import parse_neuron_budgets
from hmc.training import PruneRequest, PruneSettings, PruningRun, Recipe, train
from hmc.training.runs.updater import Update, Updater


def break_off(recipe: Recipe, out: Path, stop: int) -> None:
    """Trains until the update `stop`, which fails."""
    update = Updater.update

    def failing(self: Updater, step: int, *rest: object) -> Update:
        if step == stop:
            raise InterruptedError
        return update(self, step, *rest)  # type: ignore[arg-type]

    Updater.update = failing  # type: ignore[assignment, method-assign]
    try:
        train(recipe, out)
    except InterruptedError:
        return
    finally:
        Updater.update = update  # type: ignore[method-assign]
    raise AssertionError("the run did not break off")


def main() -> None:
    description = json.loads(Path(sys.argv[1]).read_text())
    for entry in description["train"]:
        recipe, out = Recipe.model_validate(entry["recipe"]), Path(entry["out"])
        if entry["stop"]:
            break_off(recipe, out, entry["stop"])
        train(recipe, out)
    for entry in description["prune"]:
        settings = PruneSettings.model_validate(entry["settings"])
        corpus = entry["corpus"]
        neurons = parse_neuron_budgets(entry["neurons"])
        PruningRun(
            PruneRequest(
                Path(entry["source"]), entry["targets"], [corpus], corpus, Path(entry["out"]), settings, neurons
            )
        ).run()


if __name__ == "__main__":
    main()
