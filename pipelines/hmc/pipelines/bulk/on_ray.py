"""Shards as tasks of Ray, on this machine or on a cluster.

The driver reads the corpus and writes the output; a task gets the lines of a shard and returns what became of them. So
the machines of a cluster need the bundle and nothing else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from hmc.artifact.errors import HmcError, InternalServiceError, InvalidRequestError, UnavailableError
from hmc.pipelines.bulk.corpus import CorpusLine
from hmc.pipelines.bulk.engines import BulkLevel, Done, LineResult, Shard, check_request, translate_shard
from hmc.pipelines.bulk.settings import BulkSettings
from hmc.pipelines.window import worker_rows
from hmc.serving.translator import Translator

RETRIES = 5
"""How often Ray runs a task again whose process died. A shard that needs more is not a victim but the cause."""
AHEAD = 2
"""Shards in work or waiting, for each processor. Those that wait keep it busy, and let a cluster grow."""
OBJECT_STORE = 256 * 2**20
"""Bytes of Ray's shared memory, where Ray starts on this machine. A shard takes less than one of them."""


class RayEngine:
    """Translates as tasks of Ray: on the cluster that RAY_ADDRESS names, or else on a cluster that it starts here."""

    def __init__(self, level: BulkLevel, settings: BulkSettings) -> None:
        """Connects to Ray, or starts it. Raises InvalidRequestError for a device that is not a CPU, and
        UnavailableError if there is no cluster at the address."""
        if level.device not in ("auto", "cpu"):
            raise InvalidRequestError(f"device {level.device}: the engine ray runs on CPUs; choose the engine local")
        self._settings = settings
        self._threads = level.threads or 1
        self._level = replace(
            level, bundle=Path(level.bundle).resolve(), device="cpu", threads=self._threads, workers=1
        )
        self._workers = level.workers
        _start(level.workers * self._threads)
        self._task = ray.remote(num_cpus=self._threads, max_retries=RETRIES)(translate_task)

    def translate(self, shards: Iterator[Shard]) -> Iterator[Done]:
        """See `BulkEngine`."""
        running = dict[Any, int]()
        try:
            while True:
                for number, lines in islice(shards, max(0, self._window() - len(running))):
                    running[self._task.remote(self._level, self._settings, lines)] = number
                if not running:
                    return
                (done, *_), _ = ray.wait(list(running), num_returns=1)
                number = running.pop(done)
                yield number, self._result(number, done)
        finally:
            for task in running:
                ray.cancel(task, force=True)

    def _window(self) -> int:
        """Shards that may be in work or wait. A cluster that grows gets more."""
        processors = int(ray.cluster_resources().get("CPU", 1)) // self._threads
        return AHEAD * max(1, min(processors, self._workers) if self._workers else processors)

    def _result(self, number: int, done: Any) -> list[LineResult]:
        first = number * self._settings.shard_lines
        lines = f"lines {first + 1:,} to {first + self._settings.shard_lines:,}"
        try:
            found, error = ray.get(done)
        except RayError as failed:
            why = (str(failed).splitlines() or [type(failed).__name__])[0]
            raise UnavailableError(
                f"Ray could not translate {lines} ({why}). What is written stays: run the command again, with fewer "
                "workers or shard_lines if memory is short"
            ) from failed
        if error is not None:
            internal, message = error
            raise (InternalServiceError if internal else HmcError)(f"{lines}: {message}")
        return found  # type: ignore[no-any-return]

    def close(self) -> None:
        """See `BulkEngine`."""
        ray.shutdown()


def translate_task(
    level: BulkLevel, settings: BulkSettings, lines: list[CorpusLine]
) -> tuple[list[LineResult], tuple[bool, str] | None]:
    """Translates a shard in a process of Ray. Returns an error as a value: whether it is a bug, and its message."""
    try:
        translator = _translator(level, settings.options.beam_size)
        check_request(translator, settings)
        return translate_shard(translator, lines, settings), None
    except HmcError as error:
        return [], (isinstance(error, InternalServiceError), str(error))


@lru_cache(maxsize=1)
def _translator(level: BulkLevel, beam: int) -> Translator:
    """The level, loaded once in each process of Ray."""
    return Translator(level.bundle, level.name, device="cpu", threads=level.threads, max_rows=worker_rows(beam))


def _start(processors: int) -> None:
    """Connects to the cluster that RAY_ADDRESS names, else starts Ray with so many processors. 0: all."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    here: dict[str, Any] = {}
    if not os.environ.get("RAY_ADDRESS"):
        here = {"num_cpus": processors or None, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(log_to_driver=False, logging_level=logging.WARNING, configure_logging=False, **here)
    except (ConnectionError, RayError, TimeoutError) as error:
        raise UnavailableError(
            f"Ray cannot be reached ({error}); look at RAY_ADDRESS, or unset it to run Ray on this machine"
        ) from error
