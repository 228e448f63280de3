"""A worker that calls a server at times that were fixed beforehand, whether or not earlier calls are answered.

It is the open loop of `hmc bench load`, with calls that are already bytes: a cheap client, which can ask more of a
server than HMC's own. Arguments: the server's address. A request to the worker: `texts`, `level` (a name, or `auto`),
`beam`, `rate` (calls a second), `seconds`, `seed`, `deadline_s`. Calls come at random times (a Poisson process), each
with one text. It answers with `calls`: for each the time it was due, the seconds from then to its end, its status, the
seconds of its pushback (or null) and the level that served it; `late_s`, the longest time by which a call was sent too
late; `cpu_s`, its own processor time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc

from experiments.support.worker import serve
from hmc.benchmark.load.open_loop import Reply, poisson, run_calls
from hmc.serving.wire.metadata import retry_after_s
from hmc.v1 import translation_pb2 as pb

METHOD = "/hmc.v1.TranslationService/Translate"
CONNECTIONS = 32
"""Many, so that each of several server processes gets its share."""


async def one(channel: grpc.aio.Channel, request: bytes, deadline_s: float) -> Reply:
    """Makes one call."""
    method: Any = channel.unary_unary(METHOD)
    call = method(request, timeout=deadline_s)
    code = await call.code()
    if code is grpc.StatusCode.OK:
        return Reply("answered", "OK", pb.TranslateResponse.FromString(await call).level)
    after = retry_after_s(await call.trailing_metadata())
    refused = code is grpc.StatusCode.RESOURCE_EXHAUSTED or after is not None
    return Reply("refused" if refused else "failed", code.name, "", after)


async def arrivals(address: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Sends the calls and waits for all of them."""
    level = pb.LevelSelector(auto=True) if asked["level"] == "auto" else pb.LevelSelector(name=asked["level"])
    options = pb.DecodingOptions(beam_size=asked["beam"])
    requests = [
        pb.TranslateRequest(texts=[t], level=level, options=options).SerializeToString() for t in asked["texts"]
    ]
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=own) for _ in range(CONNECTIONS)]

    async def send(number: int) -> Reply:
        return await one(channels[number % CONNECTIONS], requests[number % len(requests)], asked["deadline_s"])

    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        cpu = time.process_time()
        ran = await run_calls(send, poisson(asked["rate"], asked["seconds"], asked["seed"]))
        calls = [[call.due_s, call.latency_s, call.status, call.retry_after_s, call.level] for call in ran.calls]
        return {"calls": calls, "late_s": ran.late_s, "cpu_s": time.process_time() - cpu}
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


def main() -> None:
    """Answers requests until the standard input ends."""
    address = sys.argv[1]
    serve(lambda: ({}, lambda asked: asyncio.run(arrivals(address, asked))))


if __name__ == "__main__":
    main()
