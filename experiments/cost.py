"""The cost model against the clock: milliseconds of a request by `hmc.artifact.program.counts`, and as measured.

    python -m experiments.cost BUNDLE [BUNDLE ...] [--levels full,full-int8] [--rounds 5] [--fit]

A request is so many sentences of 24 tokens, with 24 steps each, in the executor that serves the level, on all cores. It
is run in one batch, without a server, text or queue; the fastest of all rounds counts. --fit finds the speeds that are
nearest to all measurements, by the least squares of relative errors, and prints them for `SPEEDS`.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np

from experiments.support.script import run_script
from hmc.artifact.bundle.checks import validate
from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.artifact.program.counts import SPEEDS, Counts, Request, count, request_ms
from hmc.artifact.program.operations import Program, program_path, read_program
from hmc.benchmark.budget.latency_table import non_negative_least_squares
from hmc.engine.decoding.constraints import UNCONSTRAINED
from hmc.engine.native import library
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.runtime.threads import cores
from hmc.engine.scheduling.planning import plan_job
from hmc.engine.scheduling.runners import runner_of
from hmc.engine.support import executor_of

TOKENS = 24
REQUESTS = [Request(sentences, beam, TOKENS, TOKENS) for sentences, beam in ((1, 1), (1, 4), (8, 4), (32, 4), (32, 1))]


def opened(bundle: Path, manifest: Manifest, level: Level) -> LevelSessions:
    """The level in the executor that serves it, on all cores."""
    executor = executor_of(level, "auto", cpu=True, native=library.best() is not None)
    if executor == "native":
        digests = manifest.digests
        return ProgramSessions.open_program(bundle, manifest.architecture, level, digests, executor, cores())
    return LevelSessions.open(bundle, manifest.architecture, level, Device("cpu"), cores())


def seconds(sessions: LevelSessions, request: Request) -> float:
    """Of one request."""
    options = DecodeOptions(beam_size=request.beam, min_length=request.target, max_length=request.target)
    source = [*range(10, 9 + request.source), sessions.arch.eos_id]
    jobs = [
        plan_job(sessions, source, options, UNCONSTRAINED, priority=Priority.BULK) for _ in range(request.sentences)
    ]
    batch = runner_of(sessions, request.sentences * request.beam).batch(jobs[0].mode)
    ended = 0
    began = time.perf_counter()
    batch.admit(jobs)
    while ended < len(jobs):
        ended += len(batch.step(lambda: True).ended)
    took = time.perf_counter() - began
    batch.close()
    return took


def features(program: Program, request: Request) -> list[float]:
    """What `request_ms` multiplies the inverse speeds by, in the order of `Speed`."""
    rows = request.sentences * request.beam
    positions = (request.source + request.target) // 2
    encode = count(program, program.encode, request.sentences * request.source, request.source)
    step = count(program, program.step, rows, positions)
    both = sum([step] * request.target, encode)
    beside = [1 + request.target, request.target * rows]
    return [*amounts(both), *map(float, beside)]


def amounts(counts: Counts) -> list[float]:
    """As `Speed` has them."""
    return [float(each) for each in (counts.bytes, counts.floats, counts.integers, counts.attended, counts.operations)]


def main() -> None:
    """Prints a row for each level and request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--levels", help="names, separated by commas; without it all that have a step program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    print("| level | sentences × beam | measured ms | modelled ms | modelled / measured |")
    print("|---|---|---|---|---|")
    rows: list[list[float]] = []
    for bundle in options.bundles:
        manifest = validate(bundle)
        for level in manifest.levels:
            wanted = options.levels is None or level.name in options.levels.split(",")
            if not wanted or program_path(level.name) not in level.files:
                continue
            program = read_program(bundle, level.name)
            sessions = opened(bundle, manifest, level)
            best = dict.fromkeys(REQUESTS, math.inf)
            for _ in range(options.rounds):
                for request in REQUESTS:
                    best[request] = min(best[request], seconds(sessions, request))
            sessions.close()
            for request, took in best.items():
                model = request_ms(program, request, SPEEDS["cpu"])
                size = f"{request.sentences} × {request.beam}"
                name = f"{bundle.name} {level.name}"
                print(f"| {name} | {size} | {took * 1e3:.2f} | {model:.2f} | {model / took / 1e3:.2f} |", flush=True)
                rows.append([value / took for value in features(program, request)])
    if options.fit:
        matrix = np.array(rows)
        scale = np.maximum(matrix.max(axis=0), 1e-12)  # levels in int8 have no products of floats
        found = non_negative_least_squares(matrix / scale, np.ones(len(rows))) / scale
        names = ("bytes_per_s", "floats_per_s", "integers_per_s", "attended_per_s", "operation_s", "step_s", "row_s")
        for name, value in zip(names, found, strict=True):
            print(name, f"{1 / value if name.endswith('per_s') and value else value:.3g}")
        print("largest errors:", np.sort(np.abs(matrix @ found - 1))[-5:].round(2).tolist())


if __name__ == "__main__":
    run_script(main)
