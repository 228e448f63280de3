"""Runs `hmc WORDS…` in a process that sends itself a signal.

Arguments: the moment, as `RANK/MODULE/FUNCTION/N` or `none`, and the words. SIGTERM comes before the Nth call of the
function in the process of this rank. With HMC_TEST_PROCESSES=2 `hmc prune` is a run of two processes.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any


def send_at(moment: str) -> None:
    """Wraps the function of a moment."""
    rank, module, name, number = moment.split("/")
    if os.environ.get("RANK", "0") != rank:
        return
    *path, last = name.split(".")
    owner: Any = import_module(module)
    for part in path:
        owner = getattr(owner, part)
    function, calls = getattr(owner, last), 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGTERM)
        return function(*arguments, **named)

    setattr(owner, last, wrapped)


def main() -> None:
    from hmc.cli.main import main as hmc

    prune: Any = import_module("hmc.cli.prune")
    moment = sys.argv.pop(1)
    if moment != "none":
        send_at(moment)
    settings = prune.parse_settings

    def of_several(*arguments: Any) -> Any:
        made = settings(*arguments)
        run = made.run.model_copy(update={"devices": int(os.environ.get("HMC_TEST_PROCESSES", "1"))})
        return made.model_copy(update={"run": run})

    prune.parse_settings = of_several
    hmc()


if __name__ == "__main__":
    main()
