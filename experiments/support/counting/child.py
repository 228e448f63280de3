"""Measures in a fresh process, because the stand-ins count a whole process: `fresh` starts it, `main` is its side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnxruntime

from experiments.support.counting.libraries import StandIn, environment_with
from experiments.support.counting.parts import encoder, long, memory, natural, returns, steps
from experiments.support.counting.process import Process, Task
from experiments.support.counting.refusals import refusals
from experiments.support.counting.watching import Watch
from experiments.support.worker import WorkerError
from hmc.engine.runtime.process_memory import limit_heaps

PARTS: dict[str, Callable[[Process, Task], dict[str, Any]]] = {
    "steps": steps, "encoder": encoder, "natural": natural, "memory": memory, "long": long, "returns": returns,
    "refusals": refusals,
}  # fmt: skip


def fresh(task: Task, libraries: Path) -> dict[str, Any]:
    """Measures in a new process over the stand-in libraries. Raises WorkerError if it fails.

    Except where time is measured, glibc fills new memory with a value: so all memory of the device is resident, and
    whatever reads memory that nothing has written gets no convenient zeros.
    """
    environment = {**environment_with(libraries), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if task.part != "steps":
        environment["GLIBC_TUNABLES"] = "glibc.malloc.perturb=90"
    command = [sys.executable, "-m", "experiments.support.counting.child"]
    ran = subprocess.run(
        command, input=json.dumps(asdict(task)), capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode:
        raise WorkerError(f"the part {task.part!r} failed:\n{ran.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Reads a task, prints the answer."""
    task = Task.read(json.load(sys.stdin))
    limit_heaps()  # as `hmc serve` does
    onnxruntime.set_default_logger_severity(4)
    watch = Watch(options=task.provider)
    watch.begin()
    process = Process(StandIn(), watch)
    print(json.dumps(PARTS[task.part](process, task)))
    process.stand_in.close()


if __name__ == "__main__":
    main()
