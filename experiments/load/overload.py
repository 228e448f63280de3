"""What a server does with more calls than it can carry, and how long calls wait while it carries them.

    python -m experiments.load.overload BUNDLE --source FILE [--levels full-int8,h36-int8] [--seconds 60] [--factor 3]
        [--deadline 10] [--beam 4] [--serve-with OPTION ...] [--plot FILE.png] [--report FILE]

Calls have one text each and come at random times that do not depend on the answers (a Poisson process, from a process
of its own on the same cores). Timed: from the time that a call was due to its end. In this order, on one server:

- idle: one call after the other, for each level: the p50 without any other load.
- peak: the sentences a second that the level answers while more calls come than it can carry (`--factor` times what it
  took one call after the other is surely too much, so it begins there), for a quarter of the time.
- busy: calls at 70 % of that peak: p50 and p99.
- overload: calls at `--factor` times the peak: goodput (calls answered in time) against the peak; how long refusals
  took and how many named a time to try again; memory before, at its highest, and after; then, 2 seconds later, calls
  at 30 % of the peak, all of which should be answered as fast as at the start.
- auto: the same overload, by calls that leave the level to the server; and which levels served them, second by second.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from experiments.load.served import Served, served
from experiments.support.script import machine_report, run_script, write_report
from experiments.support.worker import Worker
from hmc.benchmark.measure.text import TestSet
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import Client

IDLE_CALLS = 100
QUICK_MS = 50.0
"""A refusal should take less than this."""


class Watch:
    """The memory of a server's processes, looked at every half second while the `with` block runs."""

    def __init__(self, server: Served) -> None:
        self._server, self._over = server, threading.Event()
        self.mib: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.wait(0.5):
            self.mib.append(self._server.memory_bytes() / 2**20)

    def __enter__(self) -> Watch:
        self.mib.append(self._server.memory_bytes() / 2**20)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.mib.append(self._server.memory_bytes() / 2**20)


def summary(answer: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What came of the calls of one load that lasted so many seconds."""
    calls = answer["calls"]
    done = [call for call in calls if call[2] == "OK"]
    refused = [call for call in calls if call[2] == "RESOURCE_EXHAUSTED" or (call[2] != "OK" and call[3] is not None)]
    latency = np.array([call[1] for call in done] or [float("nan")])
    quick = 1000.0 * np.array([call[1] for call in refused] or [0.0])
    ended = max((call[0] + call[1] for call in done), default=seconds)
    return {
        "calls": len(calls),
        "statuses": dict(Counter(call[2] for call in calls)),
        "levels": dict(Counter(call[4] for call in done)),
        "per_second": len(done) / max(seconds, ended),
        "p50_ms": 1000.0 * float(np.percentile(latency, 50)),
        "p99_ms": 1000.0 * float(np.percentile(latency, 99)),
        "refused_p50_ms": float(np.percentile(quick, 50)),
        "refused_p99_ms": float(np.percentile(quick, 99)),
        "refused_in_time": float(np.mean(quick < QUICK_MS)),
        "with_pushback": sum(call[3] is not None for call in refused) / max(1, len(refused)),
        "sent_late_ms": 1000.0 * answer["late_s"],
        "client_cpu_s": answer["cpu_s"],
    }


def level_mix(calls: list[list[Any]], seconds: float) -> dict[str, list[int]]:
    """Level → calls that it answered, by the second in which they were due. `refused` are those without an answer."""
    found: dict[str, list[int]] = {}
    for due, _, status, _, level in calls:
        by_second = found.setdefault(level if status == "OK" else "refused", [0] * int(np.ceil(seconds)))
        by_second[int(due)] += 1
    return found


def draw(mix: dict[str, list[int]], path: Path) -> None:
    """Draws which levels served the calls of each second."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    names = sorted(mix, key=lambda name: (name == "refused", name))
    axes.stackplot(range(len(mix[names[0]])), [mix[name] for name in names], labels=names)
    axes.set_xlabel("seconds")
    axes.set_ylabel("calls due in this second")
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path)


class Load:
    """Calls to one server, all with the same texts and beam."""

    def __init__(self, server: Served, client: Worker, options: argparse.Namespace) -> None:
        self.server, self._client, self._options = server, client, options
        self._texts = TestSet.read(options.source).texts

    def calls(self, level: str, rate: float, seconds: float, seed: int) -> dict[str, Any]:
        """Calls at so many a second."""
        asked = {"texts": self._texts, "beam": self._options.beam, "deadline_s": self._options.deadline}
        found: dict[str, Any] = self._client.ask(
            {**asked, "level": level, "rate": rate, "seconds": seconds, "seed": seed}
        )
        return found

    def idle(self, level: str) -> np.ndarray:
        """Milliseconds of calls, one after the other."""
        found, options = [], DecodeOptions(beam_size=self._options.beam)
        with Client(self.server.address) as client:
            for text in self._texts[: IDLE_CALLS + 10]:
                began = time.perf_counter()
                client.translate([text], level=level, options=options)
                found.append(1000.0 * (time.perf_counter() - began))
        return np.array(found[10:])

    def level(self, name: str) -> dict[str, Any]:
        """Everything about one level."""
        seconds, factor = self._options.seconds, self._options.factor
        idle = self.idle(name)
        found: dict[str, Any] = {"idle_p50_ms": float(np.median(idle)), "idle_p99_ms": float(np.percentile(idle, 99))}
        flood = self.calls(name, factor * 1000.0 / float(idle.mean()), seconds / 4, seed=1)
        found["peak"] = peak = summary(flood, seconds / 4)
        found["busy"] = summary(self.calls(name, 0.7 * peak["per_second"], seconds / 2, seed=2), seconds / 2)
        found["busy_p99_by_idle_p50"] = found["busy"]["p99_ms"] / found["idle_p50_ms"]
        found["overload"] = self.overload(name, factor * peak["per_second"])
        found["after"] = summary(self._later(name, 0.3 * peak["per_second"]), 10.0)
        found["goodput"] = found["overload"]["per_second"] / peak["per_second"]
        return found

    def overload(self, name: str, rate: float) -> dict[str, Any]:
        """Calls at a rate that is too much; with the memory of the server meanwhile."""
        with Watch(self.server) as memory:
            answer = self.calls(name, rate, self._options.seconds, seed=3)
        found = summary(answer, self._options.seconds)
        found["memory_mib"] = [memory.mib[0], max(memory.mib), memory.mib[-1]]
        found["mix"] = level_mix(answer["calls"], self._options.seconds)
        return found

    def _later(self, name: str, rate: float) -> dict[str, Any]:
        time.sleep(2.0)
        return self.calls(name, rate, 10.0, seed=4)


def show(name: str, found: dict[str, Any]) -> None:
    """Prints what was found about one level."""
    busy, over, after = found["busy"], found["overload"], found["after"]
    print(
        f"{name}: idle p50 {found['idle_p50_ms']:.1f} ms; peak {found['peak']['per_second']:.0f} calls/s\n"
        f"  at 70 % of the peak: p50 {busy['p50_ms']:.1f} ms, p99 {busy['p99_ms']:.1f} ms, "
        f"{found['busy_p99_by_idle_p50']:.1f} x the idle p50; {busy['statuses']}\n"
        f"  overload: goodput {found['goodput']:.0%} of the peak; {over['statuses']}; refused in p50 "
        f"{over['refused_p50_ms']:.1f} ms, p99 {over['refused_p99_ms']:.1f} ms, {over['refused_in_time']:.1%} in time, "
        f"{over['with_pushback']:.0%} with pushback\n"
        f"  memory {' -> '.join(f'{mib:.0f}' for mib in over['memory_mib'])} MiB (before, highest, after); "
        f"sent late by at most {over['sent_late_ms']:.0f} ms\n"
        f"  2 s later: p50 {after['p50_ms']:.1f} ms, p99 {after['p99_ms']:.1f} ms; {after['statuses']}",
        flush=True,
    )


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle to serve")
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--levels", default="full-int8,h36-int8", help="levels, the best one first")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each overload")
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds that a caller waits")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--serve-with", nargs="*", default=[], help="options of `hmc serve`, without --")
    parser.add_argument("--plot", type=Path, help="draw the levels that `auto` chose into this file")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    print(__doc__)
    report: dict[str, Any] = {"machine": machine_report(), "factor": options.factor, "levels": {}}
    names = options.levels.split(",")
    serve_with = [part for option in options.serve_with for part in f"--{option}".split("=", 1)]
    with ExitStack() as stack:
        server = stack.enter_context(
            served(options.bundle, ["--levels", options.levels, "--device", "cpu", *serve_with])
        )
        load = Load(server, stack.enter_context(Worker("experiments.load.open_loop", [server.address])), options)
        for name in names:
            report["levels"][name] = found = load.level(name)
            show(name, found)
        rate = options.factor * report["levels"][names[0]]["peak"]["per_second"]
        report["auto"] = auto = load.overload("auto", rate)
        print(f"auto, {rate:.0f} calls/s: {auto['per_second']:.0f} answered/s, {auto['statuses']}, {auto['levels']}")
        for name in names:
            fixed = load.overload(name, rate)
            report["levels"][name]["at_the_same_rate"] = fixed
            print(f"{name}, {rate:.0f} calls/s: {fixed['per_second']:.0f} answered/s, {fixed['statuses']}", flush=True)
    if options.plot:
        draw(report["auto"]["mix"], options.plot)
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)
