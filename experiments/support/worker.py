"""Worker processes: one library runs alone in a process, so that its threads and its allocator do not disturb another.

A request is one line of JSON on the worker's standard input, an answer one line on its standard output. Everything else
that a worker prints goes to its standard error. This module needs the standard library only, because a worker may run
in another Python environment than the experiment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A worker process ended before it answered. Its own message is on standard error."""


class Worker:
    """The experiment's side of a worker process. The constructor returns when the worker has loaded its library."""

    def __init__(
        self, module: str, arguments: Sequence[str], *, python: str = sys.executable, threads: int = 0
    ) -> None:
        """Starts `python -m MODULE ARGUMENTS` and waits until it has loaded.

        module: a module of `experiments` that calls `serve`. python: its interpreter. Another interpreter than this one
        finds only `experiments`, no other package of this environment. threads: threads for computing; 0 leaves the
        number to the libraries. Raises WorkerError when the process ends instead.
        """
        ours = [path for path in sys.path if path] if python == sys.executable else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *ours])}
        if threads:
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self._name = f"{module} {' '.join(arguments)}"
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        try:
            self.about = self._read()
        except WorkerError:
            self.close()
            raise

    def ask(self, request: Any) -> Any:
        """Sends a request and waits for the answer. Raises WorkerError when the process ends instead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended: `_read` reports it
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # the process has ended before it read a request
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self._name} ended with status {self._process.wait()}; its message is above")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(load: Callable[[], tuple[Any, Callable[[Any], Any]]]) -> None:
    """The worker's side: answers requests until standard input ends.

    load: returns a description of the process (versions, threads) and the function that answers one request.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    about, answer = load()
    _write(answers, about)
    for line in sys.stdin:
        _write(answers, answer(json.loads(line)))


def _write(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
