"""A load on a server of HMC, through its client; and a server in a process of its own to put it on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hmc.artifact.errors import HmcError, InvalidRequestError, ending
from hmc.benchmark.load.open_loop import ARRIVALS, ArrivalProcess, Send, point_of, read_trace, search, sweep
from hmc.benchmark.load.results import BUSY_SHARE, LatencyObjective, LoadCurve, LoadPoint
from hmc.benchmark.load.senders import LoadTarget, Senders

Progress = Callable[[str], None]
FIRST_CALLS = 5
"""Calls, one after the other, that warm up a server and say from which rate a search starts."""
SETTLE_S = 0.5
"""Pause between two rates, in which the server forgets the last one."""
STOP_S = 60.0
"""How long an own server may take to stop before it is killed."""


@dataclass(frozen=True)
class LoadSettings:
    """What to send. Raises InvalidRequestError on values out of range."""

    level: str | None = None
    """A level, or `AUTO` of `hmc.benchmark.load.senders`; None: the server's default level."""
    beam: int = 4
    rates: tuple[float, ...] = ()
    """Calls a second; without any, the highest that keeps the objective is searched."""
    arrivals: ArrivalProcess = "poisson"
    trace: Path | None = None
    """A file of times in place of rates."""
    seconds: float = 20.0
    """Over which the calls of one rate are due."""
    objective: LatencyObjective = field(default_factory=lambda: LatencyObjective(1000.0))
    deadline_s: float = 30.0
    """After which a call fails."""
    seed: int = 1
    connections: int = 8
    token: str | None = None
    tls_ca: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("seconds", self.seconds), ("deadline", self.deadline_s), ("objective", self.objective.milliseconds),
            *(("rate", rate) for rate in self.rates),
        ):  # fmt: skip
            if not 0 < value < float("inf"):
                raise InvalidRequestError(f"{name} {value:g}: choose a number above 0")
        if not 0 < self.objective.share <= 1:
            raise InvalidRequestError(f"share {self.objective.share:g}: choose a number above 0, and at most 1")
        if self.connections < 1:
            raise InvalidRequestError(f"connections {self.connections}: choose 1 or more")
        if self.trace is not None and self.rates:
            raise InvalidRequestError("a trace has its own times: leave out the rates")


async def load_server(
    address: str, texts: Sequence[str], settings: LoadSettings, progress: Progress = lambda _: None
) -> LoadCurve:
    """Puts a load on a server. texts: each call has one, in turn.

    Raises InvalidRequestError for a trace that cannot be read, UnavailableError where no server answers, and the error
    of the first call if it is not one of load, such as an unknown level.
    """
    trace = read_trace(settings.trace) if settings.trace else None
    tls_ca = None if settings.tls_ca is None else str(settings.tls_ca)
    target = LoadTarget(
        address, tuple(texts), settings.level, settings.beam, settings.deadline_s, settings.connections, settings.token,
        tls_ca,
    )  # fmt: skip
    async with Senders(target) as senders:
        first = await _first_calls(senders.send)

        async def measure(rate: float) -> LoadPoint:
            due = trace or ARRIVALS[settings.arrivals](rate, settings.seconds, settings.seed)
            seconds = trace[-1] * (1 + 1 / (len(trace) - 1)) if trace else settings.seconds
            due_rate = len(due) / max(seconds, 1e-9)  # calls at random are a few more or fewer than asked for
            while True:
                await asyncio.sleep(SETTLE_S)
                progress(f"{settings.level or 'default level'}: {rate:.3g} calls/s")
                ran = await senders.run(due, settings.objective)
                if ran.client_share <= BUSY_SHARE or not await senders.grow():
                    break
                progress(f"the client takes {ran.client_share:.0%} of a core: again with {senders.processes} processes")
            return point_of(ran, due=len(due), rate=due_rate, seconds=seconds, objective=settings.objective)

        if trace:
            points = [await measure((len(trace) - 1) / max(trace[-1], 1e-9))]
        elif settings.rates:
            points = await sweep(measure, settings.rates)
        else:
            points = await search(measure, 0.5 / first)
    return LoadCurve(
        name=settings.level or "default",
        server=address,
        arrivals=settings.trace.name if settings.trace else settings.arrivals,
        beam=settings.beam,
        objective=settings.objective,
        points=tuple(points),
    )


async def _first_calls(send: Send) -> float:
    """Seconds of a lone call: the shortest of a few. Raises HmcError if none is answered."""
    clock = asyncio.get_running_loop().time
    best = float("inf")
    status = ""
    for number in range(FIRST_CALLS):
        began = clock()
        reply = await send(number)
        status = reply.status
        if reply.outcome == "answered":
            best = min(best, clock() - began)
    if best == float("inf"):
        raise HmcError(f"the server answers no call even without a load: {status}; see its log")
    return best


@contextmanager
def own_server(bundle: Path, levels: Sequence[str], **settings: Any) -> Iterator[str]:
    """Serves levels of a bundle on a free port, from a process of its own, and yields the address.

    settings: further fields of `ServerSettings`, as values for JSON. The standard error of the process, such as its
    log, goes to the log of this process. Raises HmcError with the process's message if it does not come up.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "hmc.benchmark.load.server_load"]
    configuration = {"port": 0, "levels": list(levels), **settings}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"bundle": str(bundle), "settings": configuration}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            answer = json.loads(line) if line else {"problem": f"its process {ending(process.wait())}"}
            if problem := answer.get("problem"):
                raise HmcError(f"the server of {bundle} did not start: {problem}")
            try:
                yield answer["address"]
            except HmcError as error:
                if (status := _status(process)) is None:
                    raise
                raise HmcError(f"the server of {bundle}, which this command started, {ending(status)}") from error
        finally:
            process.stdin.close()  # its sign to stop
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _status(process: subprocess.Popen[str]) -> int | None:
    """The exit status of a process that has ended, or that is about to; None: it runs."""
    try:
        return process.wait(0.5)
    except subprocess.TimeoutExpired:
        return None


def _serve() -> None:
    """The process of `own_server`: serves until standard input ends."""
    from hmc.serving.server.background import BackgroundServer
    from hmc.serving.server.settings import ServerSettings

    def answer(**values: str) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    asked = json.loads(sys.stdin.readline())
    try:
        settings = ServerSettings(**asked["settings"] | {"levels": tuple(asked["settings"]["levels"])})
        with BackgroundServer(asked["bundle"], settings) as server:
            answer(address=server.address)
            sys.stdin.read()
    except (HmcError, TypeError) as error:  # TypeError: there is no such setting
        answer(problem=" ".join(str(error).split()))  # on one line


if __name__ == "__main__":
    _serve()
