"""Latency of single sentences while streams keep a server busy, and without them.

    python -m experiments.load.mixed BUNDLE --source FILE [--level NAME] [--beam 4] [--streams 2] [--calls 60]
        [--lists N] [--every 0.25] [--rounds 3] [--serve-with OPTION ...] [--report FILE]

A server runs in its own process, on a free port. Two loads take turns. `quiet`: calls with one line of FILE each, at
random times, `--every` seconds apart on average; a call is sent when its time has come, even if earlier calls are not
answered yet. `busy`: the same calls, while `--streams` streams send FILE over and over. With `--lists` the streams are
callers that send FILE in calls of N texts, one call after the other. Timed: from sending a call to its answer, gRPC
included. Also counted: the texts of streams answered per second, with calls beside them and without.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from experiments.load.served import served
from experiments.support.script import machine_report, run_script, write_report
from hmc.benchmark.measure.text import TestSet
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import Client


class Streams:
    """Streams that send texts over and over until `close`."""

    def __init__(self, client: Client, count: int, lists: int, texts: Sequence[str], how: tuple[Any, ...]) -> None:
        """lists: 0, or the number of texts in a call, to send calls in place of streams. how: level and options."""
        self._client, self._lists, self._texts, self._how = client, lists, texts, how
        self.answered, self._over = 0, threading.Event()
        self._failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._guarded, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - raised by `close`
            self._failed.append(error)

    def _run(self) -> None:
        endless = itertools.takewhile(lambda _: not self._over.is_set(), itertools.cycle(self._texts))
        if self._lists:
            while texts := list(itertools.islice(endless, self._lists)):
                self.answered += len(self._client.translate(texts, *self._how).translations)
            return
        for answer in self._client.translate_stream(endless, *self._how, in_order=False):
            if answer.error is not None:
                raise answer.error
            self.answered += 1

    def close(self) -> None:
        """Waits until everything sent is answered. Raises the error that ended a stream early, if any did."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]


def calls(client: Client, texts: Sequence[str], times: Sequence[float], how: tuple[Any, ...]) -> list[float]:
    """Seconds that each call took. times: when each call is sent, in seconds from now."""
    began = time.perf_counter()

    def one(text: str, at: float) -> float:
        time.sleep(max(0.0, began + at - time.perf_counter()))
        sent = time.perf_counter()
        client.translate([text], *how)
        return time.perf_counter() - sent

    with ThreadPoolExecutor(len(times)) as pool:
        return list(pool.map(one, texts, times))


def main() -> None:
    """Parses arguments, measures, prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle to serve")
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--level", help="level of all calls; default: the bundle's default level")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--streams", type=int, default=2, help="streams that keep the server busy")
    parser.add_argument("--lists", type=int, default=0, metavar="N", help="use calls of N texts in place of streams")
    parser.add_argument("--calls", type=int, default=60, help="timed calls in each round")
    parser.add_argument("--every", type=float, default=0.25, help="mean seconds between two calls")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-with", nargs="*", default=[], help="options of `hmc serve`, such as workers=2")
    parser.add_argument("--report", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    print(__doc__)
    machine = machine_report()
    texts, how = TestSet.read(options.source).texts, (options.level, DecodeOptions(beam_size=options.beam))
    rng = np.random.default_rng(1)
    times = np.cumsum(rng.exponential(options.every, options.calls)).tolist()
    chosen = [texts[i] for i in rng.integers(len(texts), size=options.calls)]
    found: dict[str, list[float]] = {"quiet": [], "busy": []}
    rates: dict[str, list[float]] = {"with calls": [], "alone": []}
    serve = [f"--{option}" for option in options.serve_with]
    with served(options.bundle, serve) as server, Client(server.address) as client:
        calls(client, chosen[:4], times[:4], how)
        for _ in range(options.rounds):
            found["quiet"] += calls(client, chosen, times, how)
            streams = Streams(client, options.streams, options.lists, texts, how)
            time.sleep(2)
            for name, rate in rates.items():
                before, began = streams.answered, time.perf_counter()
                if name == "alone":
                    time.sleep(times[-1])
                else:
                    found["busy"] += calls(client, chosen, times, how)
                rate.append((streams.answered - before) / (time.perf_counter() - began))
            streams.close()
    report = {"machine": machine, "seconds": found, "texts_a_second": rates}
    for name, seconds in found.items():
        middle, high, most = np.percentile(seconds, [50, 95, 100]) * 1000
        print(f"calls, {name:6} median {middle:7.0f} ms, 95th percentile {high:7.0f}, longest {most:7.0f}")
    for name, rate in rates.items():
        print(f"streams, {name:10} {np.median(rate):7.1f} texts a second ({min(rate):.1f} to {max(rate):.1f})")
    write_report(options.report, report)


if __name__ == "__main__":
    run_script(main)
