"""Answers a stream of requests as each is ready, with a bounded number of them under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from hmc.artifact.errors import UnavailableError

Request = TypeVar("Request")
Response = TypeVar("Response")


async def until(closing: asyncio.Event, requests: AsyncIterator[Request]) -> AsyncIterator[Request]:
    """The requests that come before `closing` is set."""
    closed = asyncio.create_task(closing.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(requests))
            try:
                await asyncio.wait({coming, closed}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    return
                yield await coming
            except StopAsyncIteration:
                return
            finally:
                coming.cancel()
    finally:
        closed.cancel()


async def answer_each(
    requests: AsyncIterable[Request],
    answer: Callable[[Request, Callable[[], None]], Awaitable[Response]],
    window: int,
    closing: asyncio.Event,
) -> AsyncIterator[Response]:
    """Yields `answer(request, begun)` for every request, in the order in which they finish.

    At most `window` requests are read and not yet taken from here. Nothing is read before the request read last is
    answered or has called `begun`, which says that it waits for no room any more. So an engine whose queue is full, a
    slow one and a slow reader all hold up the sender. When `closing` is set nothing more is read, what was read is
    answered, and UnavailableError ends the stream. An error of `answer` or of `requests` ends it with that error; then,
    and when the caller stops early, everything under way is cancelled.
    """
    places = asyncio.Semaphore(window)
    finished: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()
    running: set[asyncio.Task[Response]] = set()

    async def one(request: Request, begun: asyncio.Event) -> Response:
        try:
            return await answer(request, begun.set)
        finally:
            begun.set()

    async def read() -> None:
        await places.acquire()
        async for request in requests:
            begun = asyncio.Event()
            task = asyncio.create_task(one(request, begun))
            running.add(task)
            task.add_done_callback(finished.put_nowait)
            await begun.wait()
            await places.acquire()

    reader = asyncio.create_task(read())
    reader.add_done_callback(lambda _: finished.put_nowait(None))
    closer = asyncio.create_task(closing.wait())
    closer.add_done_callback(lambda _: reader.cancel())
    try:
        while running or not reader.done():
            task = await finished.get()
            if task is not None:
                running.discard(task)
                yield task.result()
                places.release()
        if closing.is_set() and reader.cancelled():
            raise UnavailableError("the server is shutting down; send the texts without an answer to another one")
        reader.result()
    finally:
        for pending in (reader, closer, *running):
            pending.cancel()
        await asyncio.gather(reader, closer, *running, return_exceptions=True)
