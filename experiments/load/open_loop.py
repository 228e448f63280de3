"""A worker that calls a server at times that were fixed beforehand, whether or not earlier calls are answered.

Arguments: the server's address. A request to the worker: `texts`, `level` (a name, or `auto`), `beam`, `rate` (calls a
second), `seconds`, `seed`, `deadline_s`. Calls come at random times (a Poisson process), each with one text. It answers
with `calls`: for each the time it was due, the seconds from then to its end, its status, the milliseconds of its
pushback (or null) and the level that served it; `late_s`, the longest time by which a call was sent too late; `cpu_s`,
its own processor time.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import Any

import grpc
import numpy as np

from experiments.support.worker import serve
from hmc.serving.wire.metadata import TRAILER
from hmc.v1 import translation_pb2 as pb

METHOD = "/hmc.v1.TranslationService/Translate"
CONNECTIONS = 32
"""Many, so that each of several server processes gets its share."""
GRACE_S = 60.0
"""Seconds after the last arrival in which calls may still end."""


def due_times(rate: float, seconds: float, seed: int) -> list[float]:
    """Seconds at which the calls of a Poisson process are due, rising, before `seconds`."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, size=int(2 * rate * seconds) + 20)
    return [at for at in np.cumsum(gaps).tolist() if at < seconds]


async def one(channel: grpc.aio.Channel, request: bytes, due: float, began: float, deadline_s: float) -> list[Any]:
    """Makes one call, and returns its row."""
    method: Any = channel.unary_unary(METHOD)
    call = method(request, timeout=deadline_s)
    code = await call.code()
    ended = time.perf_counter() - began
    level, after = "", None
    if code is grpc.StatusCode.OK:
        level = pb.TranslateResponse.FromString(await call).level
    else:
        after = next((int(value) for key, value in await call.trailing_metadata() or () if key == TRAILER), None)
    return [due, ended - due, code.name, after, level]


async def arrivals(address: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Sends the calls and waits for all of them."""
    level = pb.LevelSelector(auto=True) if asked["level"] == "auto" else pb.LevelSelector(name=asked["level"])
    options = pb.DecodingOptions(beam_size=asked["beam"])
    requests = [
        pb.TranslateRequest(texts=[t], level=level, options=options).SerializeToString() for t in asked["texts"]
    ]
    due = due_times(asked["rate"], asked["seconds"], asked["seed"])
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=own) for _ in range(CONNECTIONS)]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        began, cpu, late = time.perf_counter(), time.process_time(), 0.0
        running = []
        for at, request, channel in zip(due, itertools.cycle(requests), itertools.cycle(channels), strict=False):
            wait = began + at - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            late = max(late, -wait)
            running.append(asyncio.create_task(one(channel, request, at, began, asked["deadline_s"])))
        async with asyncio.timeout(GRACE_S + asked["deadline_s"]):
            calls = await asyncio.gather(*running)
        return {"calls": calls, "late_s": late, "cpu_s": time.process_time() - cpu}
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


def main() -> None:
    """Answers requests until the standard input ends."""
    address = sys.argv[1]
    serve(lambda: ({}, lambda asked: asyncio.run(arrivals(address, asked))))


if __name__ == "__main__":
    main()
