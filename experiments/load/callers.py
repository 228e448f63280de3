"""A worker that makes single calls in closed loops, of requests which are already bytes, and decodes no answer.

Arguments: the server's address. A request to the worker: `texts`, `callers`, `connections`, `level`, `beam`, and
`texts_per_call`. It answers with the seconds, its own processor time meanwhile, the answers, and the milliseconds of
each call.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Any

import grpc

from experiments.support.worker import serve
from hmc.v1 import translation_pb2 as pb

METHOD = "/hmc.v1.TranslationService/Translate"


def requests_of(texts: Sequence[str], level: str, beam: int, texts_per_call: int) -> list[bytes]:
    """Requests of `Translate`, as bytes."""
    selector, options = pb.LevelSelector(name=level), pb.DecodingOptions(beam_size=beam)
    parts = [texts[n : n + texts_per_call] for n in range(0, len(texts), texts_per_call)]
    return [pb.TranslateRequest(texts=part, level=selector, options=options).SerializeToString() for part in parts]


async def run(address: str, requests: Sequence[bytes], callers: int, connections: int) -> dict[str, Any]:
    """Makes all calls, so many at a time, over so many connections."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=own) for _ in range(connections)]
    waiting = iter(requests)
    took: list[float] = []

    async def caller(channel: grpc.aio.Channel) -> None:
        translate: Any = channel.unary_unary(METHOD)
        for request in waiting:
            began = time.perf_counter()
            await translate(request)
            took.append(1000.0 * (time.perf_counter() - began))

    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        began = time.perf_counter()
        cpu = time.process_time()
        await asyncio.gather(*(caller(channels[n % connections]) for n in range(callers)))
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu, "answered": len(took), "milliseconds": took}
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


def main() -> None:
    """Answers requests until the standard input ends."""
    address = sys.argv[1]

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        requests = requests_of(asked["texts"], asked["level"], asked["beam"], asked["texts_per_call"])
        return asyncio.run(run(address, requests, asked["callers"], asked["connections"]))

    serve(lambda: ({}, answer))


if __name__ == "__main__":
    main()
