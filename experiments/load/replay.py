"""A worker that sends streams of requests which are already bytes, and does not decode the answers: a cheap client.

Arguments: the server's address. A request to the worker: `texts`, `streams`, `level`, `beam`. It answers with the
seconds from the first request to the last answer, its own processor time meanwhile, and the number of answers.
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

METHOD = "/hmc.v1.TranslationService/TranslateStream"
CONNECTIONS = 4
"""The streams are divided among so many connections."""


def requests_of(texts: Sequence[str], level: str, beam: int) -> list[bytes]:
    """Requests of a stream, as bytes."""
    selector, options = pb.LevelSelector(name=level), pb.DecodingOptions(beam_size=beam)
    messages = [
        pb.TranslateStreamRequest(id=str(n), text=text, level=selector, options=options) for n, text in enumerate(texts)
    ]
    return [message.SerializeToString() for message in messages]


async def stream(channel: grpc.aio.Channel, requests: Sequence[bytes]) -> int:
    """Sends all requests and reads all answers. Returns their number."""
    call: Any = channel.stream_stream(METHOD)()

    async def send() -> None:
        for request in requests:
            await call.write(request)
        await call.done_writing()

    sending = asyncio.create_task(send())
    answered = 0
    while await call.read() is not grpc.aio.EOF:
        answered += 1
    await sending
    return answered


async def replay(address: str, requests: Sequence[bytes], streams: int) -> dict[str, Any]:
    """Sends the requests in so many streams at the same time."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=own) for _ in range(min(streams, CONNECTIONS))]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        began, cpu = time.perf_counter(), time.process_time()
        parts = [requests[n::streams] for n in range(streams)]
        counts = await asyncio.gather(*(stream(channels[n % len(channels)], part) for n, part in enumerate(parts)))
        return {
            "seconds": time.perf_counter() - began,
            "cpu_s": time.process_time() - cpu,
            "answered": sum(counts),
        }
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))


def main() -> None:
    """Answers requests until the standard input ends."""
    address = sys.argv[1]

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        requests = requests_of(asked["texts"], asked["level"], asked["beam"])
        return asyncio.run(replay(address, requests, asked["streams"]))

    serve(lambda: ({}, answer))


if __name__ == "__main__":
    main()
