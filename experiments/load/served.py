"""`hmc serve` as a process of its own, with its processor time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from experiments.support.worker import WorkerError

ROOTS = ("protos", "compiler", "training", "engine", "serving", "benchmark", "pipelines", "cli")
"""Folders of a checkout that hold its packages."""
HMC = [sys.executable, "-c", "from hmc.cli.main import main; main()"]


class Served:
    """A server that runs, and all processes that it has started."""

    def __init__(self, process: subprocess.Popen[str], announced: dict[str, Any]) -> None:
        self.process, self.announced = process, announced
        self.address = str(announced["address"])

    def _processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def cpu_s(self) -> float:
        """Seconds of processor time that the server has used so far, in user and in kernel mode."""
        times = [process.cpu_times() for process in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def memory_bytes(self) -> int:
        """Memory that only the server's processes use (unique set size)."""
        return sum(int(process.memory_full_info().uss) for process in self._processes())


@contextmanager
def served(bundle: Path, options: Sequence[str] = (), checkout: Path | None = None) -> Iterator[Served]:
    """Starts a server on a free port, with these options of `hmc serve`, and yields it when it serves.

    checkout: the code that it runs, in this Python environment; None: the code of this process. Leaving the block stops
    it by SIGTERM. Raises WorkerError if it ends before it serves.
    """
    command = [*HMC, "serve", str(bundle), "--port", "0", "--json", *options]
    environment = dict(os.environ)
    if checkout is not None:
        environment["PYTHONPATH"] = os.pathsep.join(str(checkout / root) for root in ROOTS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise WorkerError("hmc serve ended before it was ready; its message is above")
            yield Served(process, json.loads(line))
        finally:
            process.terminate()
