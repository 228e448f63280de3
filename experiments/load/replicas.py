"""Plain replicas behind one name, under load: one is killed, another joins, one drains. No call may fail.

    python -m experiments.load.replicas BUNDLE --calls 2000 --callers 8

Servers are processes of `hmc serve` on 127.0.0.1, .2 and .3 (Linux has them all). The client is HMC's own, with the
retries that it has by default. It learns of servers by DNS, as of the pods of a headless Service, and looks the name up
again when a connection reaches its age.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from experiments.load.served import Served, served
from experiments.support.names import Names
from hmc.artifact.errors import HmcError
from hmc.serving.client import Client

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
TEXTS = ("A man.", "A dog runs.", "Two women are walking.", "A red car is parked on the street.")
WAIT_S = 60.0
"""Longest wait for an event, in seconds."""


@dataclass(frozen=True)
class Ended:
    """A call that has ended."""

    seconds: float
    error: HmcError | None


@dataclass(frozen=True)
class Phase:
    """What happened, the calls that ended meanwhile, and the calls that each living server answered."""

    name: str
    calls: Sequence[Ended]
    answered: dict[str, int]

    @property
    def failures(self) -> list[str]:
        """The errors that callers got."""
        return [str(call.error) for call in self.calls if call.error is not None]

    def summary(self) -> dict[str, object]:
        """As JSON."""
        seconds = sorted(call.seconds for call in self.calls)
        return {
            "phase": self.name,
            "calls": len(self.calls),
            "failed": len(self.failures),
            "median_ms": round(1000 * statistics.median(seconds), 1),
            "slowest_ms": round(1000 * seconds[-1], 1),
            "answered": self.answered,
        }


class Load:
    """Callers that send one call after the other through one client. Use it in a `with` block."""

    def __init__(self, client: Client, callers: int) -> None:
        self._client, self._stopped = client, False
        self._ended: list[Ended] = []
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._call, args=(n,)) for n in range(callers)]

    def _call(self, number: int) -> None:
        while not self._stopped:
            began, error = time.perf_counter(), None
            try:
                self._client.translate([TEXTS[number % len(TEXTS)]], timeout=WAIT_S)
            except HmcError as raised:
                error = raised
            number += 1
            with self._changed:
                self._ended.append(Ended(time.perf_counter() - began, error))
                self._changed.notify_all()

    def next(self, count: int) -> None:
        """Returns when `count` more calls have ended. Raises TimeoutError if they take too long."""
        with self._changed:
            until = len(self._ended) + count
            if not self._changed.wait_for(lambda: len(self._ended) >= until, WAIT_S * (1 + count / 1000)):
                raise TimeoutError(f"{count} calls have not ended")

    def taken(self) -> list[Ended]:
        """The calls that have ended since the last time."""
        with self._changed:
            taken, self._ended = self._ended, []
            return taken

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()


def answered(server: Served, host: str) -> int:
    """Calls that a server has answered so far, by its metrics."""
    with urllib.request.urlopen(f"http://{host}:{server.announced['metrics_port']}/metrics", timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == "hmc_requests_total"]
    return int(sum(sample.value for sample in samples if sample.labels["code"] == "OK"))


@contextmanager
def replicas(bundle: Path, age: float, options: Sequence[str]) -> Iterator[tuple[int, dict[str, Served]]]:
    """Starts a server on each of HOSTS, at one port. Yields the port and the servers."""
    with socket.socket() as free:
        free.bind((HOSTS[0], 0))
        port = int(free.getsockname()[1])
    given = f"--port {port} --metrics-port 0 --threads 1 --connection-age-seconds {age}".split()
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        starting = [served(bundle, ("--host", host, *given, *options)) for host in HOSTS]
        yield port, dict(zip(HOSTS, pool.map(stack.enter_context, starting), strict=True))


class Scenario:
    """The phases, in their order."""

    def __init__(self, servers: dict[str, Served], names: Names, load: Load, calls: int) -> None:
        """calls: in each phase."""
        self._servers, self._names, self._load, self._calls = dict(servers), names, load, calls

    def _phase(self, name: str) -> Phase:
        """Counts while `calls` calls end, and takes those that ended since the phase before."""
        before = {host: answered(server, host) for host, server in self._servers.items()}
        self._load.next(self._calls)
        after = {host: answered(server, host) for host, server in self._servers.items()}
        return Phase(name, self._load.taken(), {host: after[host] - before[host] for host in after})

    def _until_answered(self, host: str) -> None:
        """Returns when a server has answered its first call."""
        end = time.monotonic() + WAIT_S
        while not answered(self._servers[host], host):
            if time.monotonic() > end:
                raise TimeoutError(f"{host} has got no call")
            self._load.next(10)

    def run(self) -> Iterator[Phase]:
        """Yields each phase when it is over."""
        first, second, third = HOSTS
        for host in (first, second):
            self._until_answered(host)
        yield self._phase("two servers")

        killed = self._servers.pop(first)
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait(WAIT_S)
        yield self._phase("one is killed")

        self._names.hosts = (second, third)
        self._until_answered(third)
        yield self._phase("a third has joined")

        drained = self._servers.pop(second)
        drained.process.send_signal(signal.SIGTERM)
        if drained.process.wait(WAIT_S) != 0:
            raise RuntimeError(f"the drained server ended with {drained.process.returncode}")
        yield self._phase("the other has drained and left")


def run(bundle: Path, calls: int, callers: int, age: float, options: Sequence[str] = ()) -> list[Phase]:
    """The whole scenario. calls: in each phase. age: seconds after which a connection is replaced."""
    with (
        replicas(bundle, age, options) as (port, servers),
        Names(HOSTS[:2]) as names,
        Client(names.target(port)) as client,
        Load(client, callers) as load,
    ):
        return list(Scenario(servers, names, load, calls).run())


def main() -> None:
    """Prints a line of JSON for each phase. Fails if a call has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--calls", type=int, default=2000, help="calls in each phase")
    parser.add_argument("--callers", type=int, default=8, help="callers at a time")
    parser.add_argument("--age", type=float, default=5.0, help="seconds after which a connection is replaced")
    asked = parser.parse_args()
    phases = run(asked.bundle, asked.calls, asked.callers, asked.age)
    for phase in phases:
        print(json.dumps(phase.summary()))
    if failures := [failure for phase in phases for failure in phase.failures]:
        raise SystemExit(f"{len(failures)} calls failed: {failures[0]}")


if __name__ == "__main__":
    main()
