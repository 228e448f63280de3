"""Sentences that a server answers to many streams at once, against the engine in process on the same texts.

    python -m experiments.load.throughput BUNDLE --source FILE [--level NAME ...] [--beam 4] [--streams 64]
        [--rounds 5] [--repeat 3] [--threads 1] [--workers 1] [--serve-with OPTION ...] [--report FILE]

The server is `hmc serve` in a process of its own, the engine a `Translator` in another, and the client that replays
the streams a third. Server and engine take turns, a round each; while one works, the other waits.

The client shares the cores. Its cost is taken out in two ways. It sends requests that are bytes already and decodes no
answer, and its processor time is shown by itself. And the main figure is processor time: seconds that the *server's
process* takes for 1000 sentences, against those of the *engine's process*. On cores that are all busy, and with no
client on them, sentences a second are inverse to it. `efficiency` is engine / server of processor time; `speed` is
sentences a second of the server against the engine, with the client on the same cores, and so a lower bound.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from experiments.load.served import Served, served
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker, WorkerError
from hmc.benchmark.measure.text import TestSet

Round = dict[str, float]


def one_round(server: Served, client: Worker, engine: Worker, asked: dict[str, Any]) -> Round:
    """Engine, then server, on the same texts. Returns seconds and processor time of each, for 1000 sentences.

    Raises WorkerError if a text was not answered.
    """
    alone = engine.ask(asked)
    before = server.cpu_s()
    through = client.ask(asked)
    cpu_s, thousands = server.cpu_s() - before, len(asked["texts"]) / 1000.0
    if through["answered"] != len(asked["texts"]):
        raise WorkerError(f"{through['answered']} answers to {len(asked['texts'])} texts")
    return {
        "engine_s": alone["seconds"] / thousands,
        "engine_cpu_s": alone["cpu_s"] / thousands,
        "server_s": through["seconds"] / thousands,
        "server_cpu_s": cpu_s / thousands,
        "client_cpu_s": through["cpu_s"] / thousands,
    }


def measure(options: argparse.Namespace, level: str) -> list[Round]:
    """Rounds at one level. The first round, which warms everything up, is dropped."""
    texts = TestSet.read(options.source).texts * options.repeat
    asked = {"texts": texts, "streams": options.streams, "level": level, "beam": options.beam}
    threads = ["--threads", str(options.threads), "--workers", str(options.workers), "--device", "cpu"]
    others = [f"--{option}" for option in options.serve_with]
    with ExitStack() as stack:
        server = stack.enter_context(served(options.bundle, ["--levels", level, *threads, *others]))
        arguments = [str(options.bundle), level, str(options.threads), str(options.workers)]
        engine = stack.enter_context(Worker("experiments.load.engine", arguments))
        client = stack.enter_context(Worker("experiments.load.replay", [server.address]))
        return [one_round(server, client, engine, asked) for _ in range(options.rounds + 1)][1:]


def summary(rounds: list[Round]) -> dict[str, float]:
    """Medians over the rounds, and of the ratios in each round."""
    found = {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}
    found["efficiency"] = float(np.median([one["engine_cpu_s"] / one["server_cpu_s"] for one in rounds]))
    found["speed"] = float(np.median([one["engine_s"] / one["server_s"] for one in rounds]))
    return found


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle to serve")
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--level", nargs="+", default=["full-int8", "h36-int8"], help="levels to measure")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="times that a round sends the file")
    parser.add_argument("--threads", type=int, default=1, help="of each worker, in server and engine")
    parser.add_argument("--workers", type=int, default=1, help="of the level, in server and engine")
    parser.add_argument("--serve-with", nargs="*", default=[], help="options of `hmc serve`, such as lazy")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    print(__doc__)
    report: dict[str, Any] = {"machine": machine_report(), "streams": options.streams, "beam": options.beam}
    for level in options.level:
        rounds = measure(options, level)
        found = summary(rounds)
        report[level] = {"rounds": rounds, "summary": found}
        print(
            f"{level}, beam {options.beam}, {options.streams} streams, 1000 sentences, "
            f"median of {options.rounds} rounds\n"
            f"  processor time: engine {found['engine_cpu_s']:.2f} s, server {found['server_cpu_s']:.2f} s, "
            f"client {found['client_cpu_s']:.2f} s; efficiency {found['efficiency']:.0%}\n"
            f"  elapsed:        engine {found['engine_s']:.2f} s, server {found['server_s']:.2f} s; "
            f"speed {found['speed']:.0%}"
        )
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)
