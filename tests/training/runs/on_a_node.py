"""Started by test_nodes.py in each process of a run on several nodes.

Arguments: recipe, folder, the update in which process 1 says its id and waits to be killed (0: none), and how long a
shared folder is waited for in seconds.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hmc.artifact import InvalidRequestError
from hmc.training import Recipe, train
from hmc.training.runs import processes
from hmc.training.runs.updater import Update, Updater


def main() -> None:
    recipe, out, stop = Recipe.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), int(sys.argv[3])
    processes.WAIT_SECONDS = float(sys.argv[4])
    update = Updater.update

    def stopping(self: Updater, step: int, *rest: object) -> Update:
        if step == stop and self.fabric.global_rank == 1:
            print("waits", os.getpid(), flush=True)
            signal.pause()
        return update(self, step, *rest)  # type: ignore[arg-type]

    Updater.update = stopping  # type: ignore[assignment, method-assign]
    try:
        train(recipe, out)
    except InvalidRequestError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
