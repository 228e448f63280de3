"""The budget of one `Translate` call: processor time of each thread of the server, and of each part of its event loop.

    python -m experiments.load.call_budget BUNDLE --source FILE [--level NAME] [--callers 1 16 64] [--calls 2000]
        [--workers 2] [--functions 25]

The server runs in this process, and the client in another one (`experiments.load.callers`). Threads are read by their
clocks of processor time. gRPC's own threads have no clock here: they are what is left of the process. *gRPC alone* is
the same call at a servicer that answers with an empty message, without anything of this project.

With `--functions`, the calls are made once more under Python's profiler, which slows small functions down, so its times
are scaled to what the event loop takes without it. Times of a function exclude those that it calls; parts sum them up.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from experiments.support.script import machine_report, run_script
from experiments.support.worker import Worker
from hmc.benchmark.measure.text import TestSet
from hmc.engine.runtime.process_memory import limit_heaps
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

LOOP = "hmc-server"


class Clocks:
    """Processor time of the threads of this process, by their names, from a first look on."""

    def __init__(self) -> None:
        self._first = self._read()

    @staticmethod
    def _read() -> Counter[str]:
        seen: Counter[str] = Counter()
        for thread in threading.enumerate():
            assert thread.ident is not None
            seen[thread.name] += time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
        seen["gRPC's threads"] = time.process_time_ns() - seen.total()
        return seen

    def since(self, calls: int) -> dict[str, float]:
        """Thread → microseconds of a call, the most first."""
        now = self._read()
        return {name: (now[name] - self._first[name]) / 1e3 / calls for name, _ in (now - self._first).most_common()}


@contextmanager
def empty_server() -> Iterator[str]:
    """A server that answers every call with an empty message, on a thread of the name LOOP. Yields its address."""
    ready = threading.Event()
    stop = asyncio.Event()
    found: dict[str, Any] = {}

    async def answer(_request: bytes, _context: object) -> bytes:
        return b""

    class Every(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ARG002 - of gRPC
            return grpc.unary_unary_rpc_method_handler(answer)

    async def run() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([Every()])
        found["port"], found["loop"] = server.add_insecure_port("127.0.0.1:0"), asyncio.get_running_loop()
        await server.start()
        ready.set()
        await stop.wait()
        await server.stop(None)

    thread = threading.Thread(target=asyncio.run, args=(run(),), name=LOOP, daemon=True)
    thread.start()
    ready.wait()
    yield f"127.0.0.1:{found['port']}"
    found["loop"].call_soon_threadsafe(stop.set)
    thread.join()


def budget(client: Worker, asked: dict[str, Any]) -> dict[str, float]:
    """Microseconds of each thread for a call."""
    calls = len(asked["texts"])
    client.ask({**asked, "texts": asked["texts"][: calls // 4]})  # warms up
    clocks = Clocks()
    client.ask(asked)
    return clocks.since(calls)


def profiled(server: BackgroundServer, client: Worker, asked: dict[str, Any], loop_us: float, number: int) -> None:
    """Prints the functions that take most of the event loop. loop_us: what the loop takes without the profiler."""
    profile = cProfile.Profile(time.thread_time)
    for switch in (profile.enable, profile.disable):
        done = threading.Event()
        server.loop.call_soon_threadsafe(switch)
        server.loop.call_soon_threadsafe(done.set)
        done.wait()
        if switch == profile.enable:
            client.ask(asked)
    stats: Any = pstats.Stats(profile)
    total = sum(each[2] for each in stats.stats.values())
    parts: dict[str, float] = defaultdict(float)
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if file != "~":
            parts[part_of(file)] += own
        elif "Context" in name or not callers:
            parts[GRPC] += own
        else:
            for caller, (_, _, of_caller, _) in callers.items():
                parts[part_of(caller[0])] += of_caller
    for part, own in sorted(parts.items(), key=lambda each: -each[1]):
        print(f"      {loop_us * own / total:6.1f} us  {part}")
    for (file, line, name), (_, times, own, _, _) in sorted(stats.stats.items(), key=lambda each: -each[1][2])[:number]:
        where = f"{'/'.join(Path(file).parts[-2:])}:{line} " if line else ""
        print(f"      {loop_us * own / total:6.1f} us  {times / len(asked['texts']):5.1f} times  {where}{name}")


GRPC = "gRPC, and switches between tasks"
PARTS = {
    "asyncio/": "asyncio",
    "selectors": "asyncio",
    "grpc/": GRPC,
    "sentencepiece": "tokens",
    "serving/text/": "tokens",
    "artifact/tokenizer": "tokens",
    "serving/translator": "tokens",
    "server/edge": "edge: name, caller, access",
    "server/access": "edge: name, caller, access",
    "server/observing": "metrics",
    "prometheus": "metrics",
    "serving/wire": "messages: rules, options, answer",
    "protovalidate": "messages: rules, options, answer",
    "serving/levels": "level: choice, lease, latency",
    "serving/documents": "division",
    "segmentation": "division",
    "hmc/engine": "engine: job and queue",
    "concurrent/futures": "futures and locks",
    "threading": "futures and locks",
    "server/": "handlers",
}
"""Part of a path → what it does for a call; the first one that fits counts."""


def part_of(file: str) -> str:
    """What a function of a file does for a call. What Python itself does counts for the file that asks for it."""
    return next((part for place, part in PARTS.items() if place in file), "other")


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="bundle to serve")
    parser.add_argument("--source", type=Path, required=True, help="file with one text on each line")
    parser.add_argument("--level", default="fast-int8", help="level to measure")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2, help="of the level, a thread each")
    parser.add_argument("--functions", type=int, default=0, help="functions of the event loop to list")
    options = parser.parse_args()
    machine_report()
    limit_heaps()
    texts = TestSet.read(options.source).texts
    texts = (texts * (options.calls // len(texts) + 1))[: options.calls]
    asked = {"texts": texts, "level": options.level, "beam": 1, "connections": 1, "texts_per_call": 1}
    with empty_server() as address, Worker("experiments.load.callers", [address]) as client:
        floors = {callers: budget(client, {**asked, "callers": callers}) for callers in options.callers}
    levels = (options.level,)
    settings = ServerSettings(
        port=0, device="cpu", threads=1, workers=options.workers, levels=levels, default_level=options.level
    )
    with (
        BackgroundServer(options.bundle, settings) as server,
        Worker("experiments.load.callers", [server.address]) as client,
    ):
        for callers in options.callers:
            every = {**asked, "callers": callers}
            found = budget(client, every)
            for name, us in {**found, "all": sum(found.values()), "gRPC alone": sum(floors[callers].values())}.items():
                print(f"{callers:3} callers {us:7.0f} us  {name}")
                if name == LOOP and options.functions:
                    profiled(server, client, every, us, options.functions)


if __name__ == "__main__":
    run_script(main)
