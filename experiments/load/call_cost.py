"""What a call costs the server beside the engine: processor time, texts a second and latency of `Translate` in closed
loops.

    python -m experiments.load.call_cost BUNDLE --source FILE [--level NAME] [--beam 1] [--callers 1 16 64]
        [--connections 1 64] [--texts-per-call 1] [--calls 2000] [--rounds 3] [--workers 2] [--before CHECKOUT]
        [--serve-with OPTION ...] [--report FILE]

In each round the engine in a process of its own, the server of `--before` if there is one, and the server of this
checkout take turns with the same texts and as many of them under way. The client is a third process, which sends bytes
and decodes no answer; it shares the cores.

*Own* is the processor time of the server for a call, less that of the engine for its texts. *Possible* is the share of
what the cores could carry if nothing waited: calls a second × (server + client) / cores.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.load.served import Served, served
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker, WorkerError
from hmc.benchmark.measure.text import TestSet

Round = dict[str, float]


def one_server(server: Served, client: Worker, asked: dict[str, Any]) -> Round:
    """Processor time of a call in microseconds, of server and client; calls a second; latencies in milliseconds.

    Raises WorkerError if a call was not answered.
    """
    calls = -(-len(asked["texts"]) // asked["texts_per_call"])
    before = server.cpu_s()
    ran = client.ask(asked)
    cpu_s = server.cpu_s() - before
    if ran["answered"] != calls:
        raise WorkerError(f"{ran['answered']} answers to {calls} calls")
    p50, p99 = np.percentile(ran["milliseconds"], [50, 99]).tolist()
    return {
        "server_us": 1e6 * cpu_s / calls,
        "client_us": 1e6 * ran["cpu_s"] / calls,
        "calls_s": calls / ran["seconds"],
        "p50_ms": p50,
        "p99_ms": p99,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Medians of the rounds: (callers, connections) → engine and servers."""
    texts = TestSet.read(options.source).texts
    wanted = options.calls * options.texts_per_call
    texts = (texts * (wanted // len(texts) + 1))[:wanted]
    flags = ["--levels", options.level, "--default-level", options.level, "--device", "cpu"]
    flags += ["--threads", "1", "--workers", str(options.workers), *(f"--{each}" for each in options.serve_with)]
    checkouts: dict[str, Path | None] = {"after": None}
    if options.before is not None:
        checkouts = {"before": options.before, **checkouts}
    report: dict[str, Any] = {}
    with ExitStack() as stack:
        arguments = [str(options.bundle), options.level, "1", str(options.workers)]
        engine = stack.enter_context(Worker("experiments.load.engine", arguments))
        doors = []
        for name, checkout in checkouts.items():
            server = stack.enter_context(served(options.bundle, flags, checkout))
            doors.append((name, server, stack.enter_context(Worker("experiments.load.callers", [server.address]))))
        for callers, connections in product(options.callers, options.connections):
            asked = {
                "texts": texts, "beam": options.beam, "level": options.level, "callers": callers,
                "connections": min(callers, connections), "texts_per_call": options.texts_per_call,
                "at_once": callers * options.texts_per_call,
            }  # fmt: skip
            rounds: dict[str, list[Round]] = {}
            for number in range(options.rounds + 1):
                alone = engine.ask(asked)
                one = {"engine": {"us": 1e6 * alone["cpu_s"] / len(texts), "texts_s": len(texts) / alone["seconds"]}}
                one |= {name: one_server(server, client, asked) for name, server, client in doors}
                for name, numbers in one.items() if number else ():  # the first round warms everything up
                    rounds.setdefault(name, []).append(numbers)
            report[f"{callers} callers, {connections} connections"] = found = {
                name: {key: float(np.median([each[key] for each in several])) for key in several[0]}
                for name, several in rounds.items()
            }
            show(callers, connections, options.texts_per_call, found)
    return report


def show(callers: int, connections: int, texts_per_call: int, found: dict[str, Round]) -> None:
    """Prints a line for each server."""
    cores = len(os.sched_getaffinity(0))
    engine_us = found["engine"]["us"] * texts_per_call
    for name, numbers in found.items():
        if name == "engine":
            continue
        possible = numbers["calls_s"] * (numbers["server_us"] + numbers["client_us"]) / 1e6 / cores
        print(
            f"{callers:4} callers {connections:3} connections  {name:6}  {numbers['calls_s'] * texts_per_call:6.0f} "
            f"texts/s (engine {found['engine']['texts_s']:6.0f})  p50 {numbers['p50_ms']:7.2f} p99 "
            f"{numbers['p99_ms']:7.2f} ms  engine {engine_us:5.0f}  own {numbers['server_us'] - engine_us:5.0f}  "
            f"client {numbers['client_us']:4.0f} us  possible {possible:.0%}",
            flush=True,
        )


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle to serve")
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--level", default="fast-int8", help="level to measure")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--texts-per-call", type=int, default=1)
    parser.add_argument("--calls", type=int, default=2000, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of the level, in server and engine, a thread each")
    parser.add_argument("--before", type=Path, help="another checkout, whose server takes turns with this one's")
    parser.add_argument("--serve-with", nargs="*", default=[], help="options of `hmc serve`, such as lazy")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine_report(), "arguments": vars(options) | {"report": None}}
    report["results"] = measure(options)
    report["arguments"] = {name: str(value) for name, value in vars(options).items()}
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)
