"""What a call waits for while streams keep a server busy: latency of single sentences, with and without bulk work.

    python benchmarks/mixed_load.py BUNDLE --source FILE [--level NAME] [--beam 4] [--streams 2] [--calls 60]
        [--lists N] [--every 0.25] [--rounds 3] [--serve-with OPTION ...] [--json FILE]

A server of its own process, on a free port. In turns: `quiet`, calls of one sentence each (the lines of FILE, at random
times, `--every` seconds apart on average, each sent when its time has come whether or not others are answered); and
`busy`, the same calls while `--streams` streams send FILE over and over, or with `--lists` as many callers send it in
calls of N texts, one after the other. Timed: from sending a call to its answer, gRPC included, and how many texts of
streams are answered a second, once with calls beside them and once without.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scripts import machine_report, run_script, write_report
from workers import WorkerError

from hmc.benchmark.text import TestSet
from hmc.serving.client import Client
from hmc.serving.options import DecodeOptions

HMC = [sys.executable, "-c", "from hmc.cli.main import main; main()"]


@contextmanager
def server(bundle: Path, options: Sequence[str]) -> Iterator[str]:
    """The address of one that is ready; it stops at the end."""
    command = [*HMC, "serve", str(bundle), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next((line for line in process.stdout if "127.0.0.1:" in line), "")
            if not line:
                raise WorkerError("hmc serve ended before it was ready; its message is above")
            address = "127.0.0.1:" + line.partition("127.0.0.1:")[2].split()[0].rstrip(".,;")
            threading.Thread(target=process.stdout.read, daemon=True).start()
            with Client(address) as client:
                client.wait_ready(300)
            yield address
        finally:
            process.terminate()


class Streams:
    """Streams that send texts over and over until they are closed."""

    def __init__(self, client: Client, count: int, lists: int, texts: Sequence[str], how: tuple[Any, ...]) -> None:
        """lists: texts of a call, where calls are sent instead; 0 for none. how: level and options."""
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
        """Returns when all that was sent is answered. Raises what ended a stream before."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]


def calls(client: Client, texts: Sequence[str], times: Sequence[float], how: tuple[Any, ...]) -> list[float]:
    """Seconds that each call took. times: seconds from now at which each is sent."""
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
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="a text a line")
    parser.add_argument("--level", help="default: the bundle's")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--lists", type=int, default=0, metavar="N", help="calls of N texts in place of streams")
    parser.add_argument("--calls", type=int, default=60, help="a round")
    parser.add_argument("--every", type=float, default=0.25, help="seconds between calls, on average")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-with", nargs="*", default=[], help="options of `hmc serve`, such as workers=2")
    parser.add_argument("--json", type=Path)
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
    with server(options.bundle, serve) as address, Client(address) as client:
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
    write_report(options.json, report)


if __name__ == "__main__":
    run_script(main)
