"""A process of its own that answers requests: what one library does to a process (threads, allocator, numerics) stays
there. Standard library only, so that a worker can run in another Python environment than the script that drives it.

A request and an answer are a line of JSON each. Whatever a worker prints goes to its standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent


class WorkerError(Exception):
    """A worker ended before it answered; what it said is on the standard error."""


class Worker:
    """The driving side. Loading is over when the constructor returns."""

    def __init__(
        self, script: str, arguments: Sequence[str], *, python: str = sys.executable, threads: int = 0
    ) -> None:
        """script: a file beside this one that calls `serve`. python: another interpreter gets none of our paths.

        threads: computing threads of the process; 0 leaves them to its libraries. Raises WorkerError when it ends.
        """
        environment = dict(os.environ)
        if python == sys.executable:
            environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        if threads:
            environment |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self._name = f"{script} {' '.join(arguments)}"
        self._process = subprocess.Popen(
            [python, str(HERE / script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        self.about = self._read()

    def ask(self, request: Any) -> Any:
        """Sends a request and waits for its answer. Raises WorkerError when the process ends instead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: reading says so
        return self._read()

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self._name} ended with status {self._process.wait()}; its message is above")
        return json.loads(line)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(load: Callable[[], tuple[Any, Callable[[Any], Any]]]) -> None:
    """The answering side: `load` returns what to say of itself and the function that answers a request."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    about, answer = load()
    _say(answers, about)
    for line in sys.stdin:
        _say(answers, answer(json.loads(line)))


def _say(answers: Any, value: Any) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
