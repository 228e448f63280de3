"""The processes that send a load: this one, and more where it is too slow alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hmc.artifact.errors import HmcError, OverloadedError, UnauthenticatedError, ending
from hmc.benchmark.load.open_loop import Ran, Reply, Send, run_calls
from hmc.benchmark.load.results import LatencyObjective, LoadCall
from hmc.serving.client import ONCE, AsyncClient, DecodeOptions, Selector

AUTO = "auto"
"""The level's name that leaves the choice to the server."""
START_S = 0.1
"""Seconds between the word to all processes and the first call."""
MOST_LINE = 2**30
"""Bytes of the longest answer of a process."""


@dataclass(frozen=True)
class LoadTarget:
    """What is sent, and where to."""

    address: str
    texts: tuple[str, ...]
    """Each call has one, in turn."""
    level: str | None
    beam: int
    deadline_s: float
    connections: int
    token: str | None
    tls_ca: str | None


@asynccontextmanager
async def sender(target: LoadTarget) -> AsyncIterator[Send]:
    """Makes calls in this process.

    Raises UnavailableError if no server answers. Also raises the error of the first call if the load did not cause it,
    such as a wrong level or a wrong token.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are counted; gRPC's own log would clutter the terminal
    level = Selector(auto=True) if target.level == AUTO else target.level
    options = DecodeOptions(beam_size=target.beam)
    tls_ca = None if target.tls_ca is None else Path(target.tls_ca)
    texts = target.texts
    async with AsyncClient(
        target.address, token=target.token, tls_ca=tls_ca, retry=ONCE, connections=target.connections
    ) as client:
        await client.wait_ready()
        try:
            await client.translate([texts[0]], level, options, timeout=target.deadline_s)
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}; give this server's token as token, or in HMC_TOKEN") from error

        async def send(number: int) -> Reply:
            try:
                answer = await client.translate(
                    [texts[number % len(texts)]], level, options, timeout=target.deadline_s, segmentation="none"
                )
            except HmcError as error:
                refused = isinstance(error, OverloadedError) or error.retry_after_s is not None
                return Reply("refused" if refused else "failed", type(error).__name__, "", error.retry_after_s)
            return Reply("answered", "OK", answer.level)

        yield send


@dataclass(frozen=True)
class Share:
    """The part of a load that one process sends."""

    due: tuple[float, ...]
    """When its calls are due, from the beginning of the load."""
    first: int
    """The number of its first call in the load."""
    step: int
    """From the number of one of its calls to that of its next one."""
    began: float
    """When the load begins, on the machine's monotonic clock, which is that of event loops too."""
    objective: tuple[float, float]
    """Milliseconds and share, see `LatencyObjective`."""


async def send_share(send: Send, share: Share) -> Ran:
    """Sends a part of a load."""

    async def numbered(number: int) -> Reply:
        return await send(share.first + share.step * number)

    cpu = time.process_time()
    ran = await run_calls(numbered, share.due, LatencyObjective(*share.objective), share.began)
    busy = (time.process_time() - cpu) / max(time.monotonic() - share.began, 1e-9)
    return Ran(ran.calls, ran.late_s, ran.stopped, busy)


class Senders:
    """The processes that send calls: this one and its helpers. Use it in an `async with` block of one event loop."""

    def __init__(self, target: LoadTarget) -> None:
        self._target = target
        self._stack = AsyncExitStack()
        self._others: list[asyncio.subprocess.Process] = []
        self.send: Send
        """Makes a call of this process."""

    async def __aenter__(self) -> Senders:
        """Raises as `sender`."""
        self.send = await self._stack.enter_async_context(sender(self._target))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def processes(self) -> int:
        """How many there are."""
        return 1 + len(self._others)

    async def grow(self) -> bool:
        """Doubles the processes, up to the cores that this one may use. Returns whether there are more now.

        Raises HmcError if one does not start.
        """
        most = min(2 * self.processes, len(os.sched_getaffinity(0)))
        if most <= self.processes:
            return False
        while self.processes < most:
            self._others.append(await self._stack.enter_async_context(_process(self._target)))
        return True

    async def run(self, due: Sequence[float], objective: LatencyObjective) -> Ran:
        """Sends a load in all processes, each of them every so many-th call. Each stops by itself when its calls cannot
        keep the objective any more."""
        number = self.processes
        began = time.monotonic() + START_S
        limits = (objective.milliseconds, objective.share)
        shares = [Share(tuple(due[first::number]), first, number, began, limits) for first in range(number)]
        asked = [_ask(process, share) for process, share in zip(self._others, shares[1:], strict=True)]
        ran = await asyncio.gather(send_share(self.send, shares[0]), *asked)
        calls = sorted(chain.from_iterable(part.calls for part in ran), key=lambda call: call.due_s)
        return Ran(
            tuple(calls),
            max(part.late_s for part in ran),
            any(part.stopped for part in ran),
            max(part.client_share for part in ran),
            number,
        )


@asynccontextmanager
async def _process(target: LoadTarget) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hmc.benchmark.load.senders", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment, limit=MOST_LINE,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        await _answer(process, asdict(target))
        yield process
    finally:
        process.stdin.close()  # its sign to end
        await process.wait()


async def _ask(process: asyncio.subprocess.Process, share: Share) -> Ran:
    answer = await _answer(process, asdict(share))
    calls = tuple(LoadCall(*call) for call in answer["calls"])
    return Ran(calls, answer["late_s"], answer["stopped"], answer["client_share"])


async def _answer(process: asyncio.subprocess.Process, value: Any) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(value).encode() + b"\n")
    await process.stdin.drain()
    line = await process.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"problem": f"its process {ending(await process.wait())}"}
    if problem := answer.get("problem"):
        raise HmcError(f"a process of the client cannot send: {problem}")
    return answer


async def _serve() -> None:
    """Another process: sends what it is told until its standard input ends."""
    loop = asyncio.get_running_loop()

    def say(**values: Any) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    target = LoadTarget(**json.loads(await loop.run_in_executor(None, sys.stdin.readline)))
    try:
        async with sender(target) as send:
            say()
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                ran = await send_share(send, Share(**json.loads(line)))
                calls = [tuple(vars(call).values()) for call in ran.calls]
                say(calls=calls, late_s=ran.late_s, stopped=ran.stopped, client_share=ran.client_share)
    except HmcError as error:
        say(problem=" ".join(str(error).split()))  # on one line


if __name__ == "__main__":
    asyncio.run(_serve())
