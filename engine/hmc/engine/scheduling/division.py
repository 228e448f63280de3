"""How the cores of this machine are divided among the workers of a level: measured where nobody says.

A second thread makes a product of large weights faster, and one of small weights slower: its threads wait for each
other longer than they compute. So a small model is served by a worker of one thread on each core, and a large one by
one worker with all cores. Where the border lies depends on the model, on how many of its heads are left, and on the
processor.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, decoder_path, encoder_path
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job
from hmc.engine.requests.options import MAX_BEAM, DecodeOptions
from hmc.engine.runtime.packed_weights import PackedWeights, write_whole
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.runtime.threads import cores
from hmc.engine.scheduling.batch import HostBatch
from hmc.engine.scheduling.native_batch import NativeSearchBatch
from hmc.engine.scheduling.planning import plan_job
from hmc.engine.scheduling.runners import runner_of
from hmc.engine.support import Executor

log = logging.getLogger(__name__)

FOLDER = "divisions"
"""Where divisions are remembered, beside packed weights."""
FULL_ROWS = 32
"""Rows of the batch that stands for a busy level."""
SOURCE_TOKENS = 24
STEPS = 8
ROUNDS = 3
"""Of each measurement; the fastest step of all rounds counts."""
CLEARLY = 0.9
"""Several workers must cost less than this share of what one worker with all cores costs: measurements are noisy."""


@dataclass(frozen=True)
class Division:
    """Workers, each of which runs a batch, and the threads of each; 0: one for each core."""

    workers: int
    threads: int

    def __str__(self) -> str:
        threads = f"{self.threads or cores()} thread{'s' if (self.threads or cores()) > 1 else ''}"
        return f"{self.workers} worker{'s' if self.workers > 1 else ''} of {threads}"


def given_division(threads: int, workers: int) -> Division:
    """The division without a measurement: what is given, and one worker where that is not."""
    return Division(max(workers, 1), threads)


def measured_division(
    level: Level, open_with: Callable[[Division], LevelSessions], folder: Path, max_rows: int,
    executor: Executor = "onnxruntime",
) -> Division:  # fmt: skip
    """The division of a level on a CPU, from `folder` if this machine has measured it before.

    open_with: opens the level's sessions for a division. folder: of packed weights. max_rows: of
    all workers together; each gets enough of them for the largest beam. executor: of the sessions. Raises what
    `open_with` raises.
    """
    count = cores()
    choices = [Division(count // n, n) for n in _powers_of_2(count) if count // n * MAX_BEAM <= max_rows]
    choices.append(Division(1, 0))
    if len(choices) == 1 or count == 1:
        return choices[-1]
    files = [level.files[path] for path in (encoder_path(level.name), decoder_path(level.name)) if path in level.files]
    key = hashlib.sha256(json.dumps([files, count, max_rows, executor]).encode()).hexdigest()[:32]
    remembered = PackedWeights(folder).folder / FOLDER / f"{key}.json"
    with suppress(OSError, ValueError, TypeError):
        division = Division(**json.loads(remembered.read_bytes()))
        if division in choices:
            return division
    opened = {choice: open_with(Division(1, choice.threads)) for choice in choices}
    costs = _costs(opened)
    best = min(choices, key=costs.__getitem__)
    one_worker = choices[-1]
    if costs[best] > CLEARLY * costs[one_worker]:
        best = one_worker
    log.info(
        "level %s: %s, measured on this machine (%s)", level.name, best,
        ", ".join(f"{choice}: {cost / costs[one_worker]:.2f}" for choice, cost in costs.items()),
    )  # fmt: skip
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        write_whole(remembered, json.dumps({"workers": best.workers, "threads": best.threads}).encode())
    except OSError as error:
        log.warning("%s cannot be written, so the next start measures again: %s", remembered, error)
    return best


def _powers_of_2(below: int) -> list[int]:
    return [2**n for n in range(below.bit_length()) if 2**n < below]


def _costs(opened: Mapping[Division, LevelSessions]) -> dict[Division, float]:
    """Seconds of a lone sentence's step times the seconds that a row takes when all workers are busy: it matters alike
    how long one waits, and how much is served. The divisions are measured in turn."""
    fastest = dict.fromkeys(product(opened, (1, FULL_ROWS)), math.inf)
    for _ in range(ROUNDS):
        for (division, rows), seconds in fastest.items():
            fastest[division, rows] = min(seconds, _step_seconds(opened[division], rows))
    return {division: fastest[division, 1] * fastest[division, FULL_ROWS] / division.workers for division in opened}


def _step_seconds(sessions: LevelSessions, rows: int) -> float:
    """Seconds of the fastest of STEPS steps of greedy search over `rows` sentences."""
    jobs = [_job(sessions) for _ in range(rows)]
    batch = runner_of(sessions, rows).batch(jobs[0].mode)
    assert isinstance(batch, HostBatch | NativeSearchBatch)
    batch.admit(jobs)
    fastest = math.inf
    while batch.jobs and batch.steps < STEPS:  # a model of few positions writes fewer tokens
        before = batch.steps
        began = time.perf_counter()
        batch.step(lambda: False)
        fastest = min(fastest, (time.perf_counter() - began) / (batch.steps - before))
    batch.close()
    return fastest


def _job(sessions: LevelSessions) -> Job:
    """A sentence of unknown tokens, with as many steps as are measured, where the model takes so many."""
    arch = sessions.arch
    source = [*[arch.unk_id] * min(SOURCE_TOKENS - 1, arch.max_positions - 2), arch.eos_id]
    steps = min(STEPS + 1, arch.max_positions - 1)
    return plan_job(sessions, source, DecodeOptions(beam_size=1, min_length=steps, max_length=steps), Constraints())
