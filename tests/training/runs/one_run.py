"""Started by test_runs.py in a process of its own. Arguments: recipe, folder, and the update in which it is killed; 0:
none."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hmc.training import Recipe, train
from hmc.training.runs.updater import Update, Updater


def main() -> None:
    stop, update = int(sys.argv[3]), Updater.update

    def killed(self: Updater, step: int, *rest: object) -> Update:
        if step == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        return update(self, step, *rest)  # type: ignore[arg-type]

    Updater.update = killed  # type: ignore[assignment, method-assign]
    train(Recipe.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
