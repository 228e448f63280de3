"""Processes that need not load PyTorch again: a process that trained nothing yet has loaded it, and forks each of them.

They differ from a new process in that alone: nothing was computed before the fork, and no thread was running.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tests.ports import held_port
from tests.processes import REPOSITORY, environment

LOADED = (
    "datasets", "sacrebleu", "torch.utils.tensorboard", "hmc.cli.main", "hmc.cli.prune", "hmc.cli.train",
    "hmc.training.pruning.run", "hmc.training.trainer.trainer",
)  # fmt: skip
"""What a run of training or pruning imports sooner or later."""


class Forks:
    """Starts scripts in processes that were forked from one that has loaded the libraries of training."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(
        self, script: Path, *words: str | Path, folder: Path | None = None, errors: Path | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> int:  # fmt: skip
        """Runs a script with `words` as its arguments; returns the id of its process.

        folder: its working directory. errors: the file that its stderr goes to. variables: of its environment.
        """
        job = {
            "script": str(script),
            "words": list(map(str, words)),
            "folder": str(folder or REPOSITORY),
            "errors": str(errors or os.devnull),
            "variables": {name: str(value) for name, value in (variables or {}).items()},
        }
        return self._ask(job)

    def wait(self, process: int) -> int:
        """Waits for a process; returns its status, or minus the signal that ended it."""
        return self._ask({"wait": process})

    def run(self, script: Path, *words: str | Path) -> int:
        """Runs a script to its end; returns its status."""
        return self.wait(self.start(script, *words))

    def run_group(
        self, script: Path, *words: str | Path, folders: Sequence[Path], devices: int,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:  # fmt: skip
        """Runs a process in each folder, with the variables that torchrun sets; returns their statuses.

        devices: processes of a node. variables: of the environment of all. Each process writes its stderr to
        `stderr-RANK` in its folder.
        """
        started = []
        with held_port() as port:
            for rank, folder in enumerate(folders):
                places = {"RANK": rank, "GROUP_RANK": rank // devices, "LOCAL_RANK": rank % devices}
                sizes = {"WORLD_SIZE": len(folders), "LOCAL_WORLD_SIZE": devices}
                address = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
                errors, own = folder / f"stderr-{rank}", {**places, **sizes, **address, **(variables or {})}
                started.append(self.start(script, *words, folder=folder, errors=errors, variables=own))
            return [self.wait(process) for process in started]

    def _ask(self, request: Mapping[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@contextmanager
def forking() -> Iterator[Forks]:
    """The process that forks, with a hash seed of its own. It ends with the block."""
    command = [sys.executable, "-m", "tests.support.forks"]
    variables = environment(OMP_NUM_THREADS="1")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, cwd=REPOSITORY
    ) as process:
        yield Forks(process)


def _serve() -> None:
    """Reads requests, a line each; forks, or waits, and answers with a number. Returns in a fork that did its job."""
    for line in sys.stdin:
        job = json.loads(line)
        if "wait" in job:
            answer = os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1])
        elif not (answer := os.fork()):
            _do(job)
            return
        print(answer, flush=True)


def _do(job: dict[str, object]) -> None:
    with Path(str(job["errors"])).open("w") as errors, Path(os.devnull).open("w") as nothing:
        os.dup2(errors.fileno(), 2)
        os.dup2(nothing.fileno(), 1)
    os.chdir(str(job["folder"]))
    os.environ.update(job["variables"])  # type: ignore[call-overload]
    sys.argv[:] = [str(job["script"]), *job["words"]]  # type: ignore[misc]
    runpy.run_path(str(job["script"]), run_name="__main__")


if __name__ == "__main__":
    for name in LOADED:
        import_module(name)
    gc.freeze()  # no fork looks through what was loaded, which would copy its memory
    _serve()
