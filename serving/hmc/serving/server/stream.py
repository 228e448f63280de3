"""Answers a stream of requests as each is ready, with a bounded number of them under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TypeVar

Request = TypeVar("Request")
Response = TypeVar("Response")


async def answer_each(
    requests: AsyncIterable[Request], answer: Callable[[Request], Awaitable[Response]], window: int
) -> AsyncIterator[Response]:
    """Yields `answer(request)` for every request, in the order in which they finish.

    At most `window` requests are read and not yet taken from here: a slow engine and a slow reader both hold up the
    sender. An error of `answer` or of `requests` ends the stream with it; then, and when the caller stops early,
    everything under way is cancelled.
    """
    places = asyncio.Semaphore(window)
    finished: asyncio.Queue[asyncio.Task[Response] | asyncio.Task[None]] = asyncio.Queue()
    running: set[asyncio.Task[Response]] = set()

    async def read() -> None:
        async for request in requests:
            await places.acquire()
            task = asyncio.ensure_future(answer(request))
            running.add(task)
            task.add_done_callback(finished.put_nowait)
            if places.locked():
                await asyncio.sleep(0)

    reader = asyncio.create_task(read())
    reader.add_done_callback(finished.put_nowait)
    reading = True
    try:
        while reading or running:
            task = await finished.get()
            if task is reader:
                await reader
                reading = False
                continue
            running.discard(task)
            yield task.result()
            places.release()
    finally:
        for task in (reader, *running):
            task.cancel()
        await asyncio.gather(reader, *running, return_exceptions=True)
