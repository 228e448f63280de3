"""Flow control of streams: a bounded number of texts under way in each stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from hmc.artifact.errors import UnavailableError

Request = TypeVar("Request")
Response = TypeVar("Response")
Answered_co = TypeVar("Answered_co", covariant=True)


async def until(closing: asyncio.Event, requests: AsyncIterator[Request]) -> AsyncIterator[Request]:
    """Yields requests until `closing` is set."""
    closed = asyncio.create_task(closing.wait())
    try:
        while True:
            following = asyncio.ensure_future(anext(requests))
            try:
                await asyncio.wait({following, closed}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    return
                yield await following
            except StopAsyncIteration:
                return
            finally:
                following.cancel()
    finally:
        closed.cancel()


class UnderWay(Protocol[Answered_co]):
    """A request of a stream that was begun."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """Done when there is an answer. Cancelling it gives the request up."""
        ...

    def answer(self) -> Answered_co:
        """The answer; called once `future` is done. An error ends the stream."""
        ...


async def answer_each(
    requests: AsyncIterable[Request],
    begin: Callable[[Request], Awaitable[UnderWay[Response]]],
    window: int,
    closing: asyncio.Event,
) -> AsyncIterator[Response]:
    """Yields the answers of all requests, in the order in which they are ready.

    At most `window` requests are under way: begun, and their answers not yet taken from this iterator. The next request
    is read only when `begin` of the one before has returned, which means that it has its place in a level's queue. So a
    full queue, a slow engine and a slow reader all hold up the sender. No request costs a task of its own.

    When `closing` is set, no more requests are read, those under way are answered, and UnavailableError ends
    the stream. An error raised by `begin`, by `requests` or by an answer ends the stream with that error. When the
    stream ends early, all requests under way are cancelled.
    """
    free = asyncio.Semaphore(window)
    finished: asyncio.Queue[UnderWay[Response] | None] = asyncio.Queue()
    running: dict[asyncio.Future[Any], UnderWay[Response]] = {}
    beginning, cut_off = False, False

    async def read() -> None:
        nonlocal beginning, cut_off
        await free.acquire()
        async for request in requests:
            beginning = True
            begun = await begin(request)
            beginning = False
            running[begun.future] = begun
            begun.future.add_done_callback(lambda done: finished.put_nowait(running.pop(done)))
            if cut_off:
                return
            await free.acquire()

    def stop_reading(_: object) -> None:
        nonlocal cut_off
        cut_off = not reader.done()
        if not beginning:
            reader.cancel()

    reader = asyncio.create_task(read())
    reader.add_done_callback(lambda _: finished.put_nowait(None))
    closer = asyncio.create_task(closing.wait())
    closer.add_done_callback(stop_reading)
    try:
        while running or not reader.done() or not finished.empty():
            ended = await finished.get()
            if ended is not None:
                yield ended.answer()
                free.release()
        if closing.is_set() and cut_off:
            raise UnavailableError("the server is shutting down; send the unanswered texts to another one")
        reader.result()
    finally:
        pending = [reader, closer, *running]
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
