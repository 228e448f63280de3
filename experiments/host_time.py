"""What the host does for a sentence, beside its executor: microseconds of processor time a sentence, ids in, ids out.

    python -m experiments.host_time BUNDLE --source FILE [--level full-int8] [--sentences 2048] [--beams 1,4] [--profile]

Sentences are submitted to the engine of one worker of one thread, all at once, as bulk. Time within the native executor
is counted apart, by a clock around each of its calls. What is left is the engine: plans, the queue, the scheduler,
batches, results, futures. --profile also prints where it goes, as cProfile sees it.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.support.script import run_script
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.options import DecodeOptions
from hmc.engine.scheduling.engine import Engine
from hmc.serving import Translator

CALLS = ("hmc_admit", "hmc_run", "hmc_keep", "hmc_states", "hmc_collect")


class Timed:
    """The library, with a clock around the calls that a batch makes."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.seconds = dict.fromkeys(CALLS, 0.0)
        self.calls = dict.fromkeys(CALLS, 0)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, name)
        if name not in CALLS:
            return function

        def timed(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds[name] += time.thread_time() - began
                self.calls[name] += 1

        return timed


def measured(engine: Engine, timed: Timed, sources: list[list[int]], beam: int) -> tuple[float, float]:
    """Microseconds of processor time a sentence: beside the executor, and within it."""
    options = DecodeOptions(beam_size=beam)
    timed.seconds = dict.fromkeys(CALLS, 0.0)
    began = time.process_time()
    futures = [engine.submit(source, options, block=True, priority=Priority.BULK) for source in sources]
    for future in futures:
        future.result()
    whole = time.process_time() - began
    inside = sum(timed.seconds.values())
    count = len(sources)
    return (whole - inside) / count * 1e6, inside / count * 1e6


def profiled(call: Callable[[], Any]) -> None:
    """Prints the functions that take most time, of all threads that start meanwhile."""
    profile = cProfile.Profile()
    profile.runcall(call)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Prints a row for each beam."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="a sentence on each line")
    parser.add_argument("--level", default="full-int8")
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    texts = options.source.read_text(encoding="utf-8").splitlines()
    texts = [text for text in texts if text][: options.sentences]
    with Translator(
        options.bundle, options.level, device="cpu", threads=1, workers=1, executor="native", queue_size=len(texts) + 8
    ) as translator:
        sources = [list(translator._tokenizer.encode(text)[0]) for text in texts]
        engine = translator._engine
        level = engine.sessions.program
        level.library = timed = Timed(level.library)
        print("| beam | µs a sentence beside the executor | within it |")
        print("|---|---|---|")
        for beam in map(int, options.beams.split(",")):
            measured(engine, timed, sources[:256], beam)
            found = [measured(engine, timed, sources, beam) for _ in range(options.rounds)]
            beside = min(found)
            print(f"| {beam} | {beside[0]:.1f} | {beside[1]:.0f} |", flush=True)


if __name__ == "__main__":
    run_script(main)
