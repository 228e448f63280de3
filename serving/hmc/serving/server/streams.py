"""Flow control of streams: a bounded number of texts under way in each stream, and a fair order at a full queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from hmc.artifact.errors import DeadlineExceededError, OverloadedError, UnavailableError
from hmc.serving.levels.slots import Lease
from hmc.serving.requests.caller import ANYONE, Caller
from hmc.serving.requests.options import DecodeOptions, Target
from hmc.serving.requests.results import Translation

Request = TypeVar("Request")
Response = TypeVar("Response")


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


async def answer_each(
    requests: AsyncIterable[Request],
    answer: Callable[[Request, Callable[[], None]], Awaitable[Response]],
    window: int,
    closing: asyncio.Event,
) -> AsyncIterator[Response]:
    """Yields `answer(request, queued)` for every request, in the order in which the answers are ready.

    At most `window` requests are under way: read, and their answers not yet taken from this iterator. The next request
    is read only after the previous one is answered or has called `queued`, which means that it has its place in a
    level's queue. So a full queue, a slow engine and a slow reader all hold up the sender.

    When `closing` is set, no more requests are read, those under way are answered, and UnavailableError ends the
    stream. An error raised by `answer` or `requests` ends the stream with that error. When the stream ends early, all
    requests under way are cancelled.
    """
    free = asyncio.Semaphore(window)
    finished: asyncio.Queue[asyncio.Task[Response] | None] = asyncio.Queue()
    running: set[asyncio.Task[Response]] = set()

    async def one(request: Request, queued: asyncio.Event) -> Response:
        try:
            return await answer(request, queued.set)
        finally:
            queued.set()

    async def read() -> None:
        await free.acquire()
        async for request in requests:
            queued = asyncio.Event()
            task = asyncio.create_task(one(request, queued))
            running.add(task)
            task.add_done_callback(finished.put_nowait)
            await queued.wait()
            await free.acquire()

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
                free.release()
        if closing.is_set() and reader.cancelled():
            raise UnavailableError("the server is shutting down; send the unanswered texts to another one")
        reader.result()
    finally:
        for pending in (reader, closer, *running):
            pending.cancel()
        await asyncio.gather(reader, closer, *running, return_exceptions=True)


def given_up_after(milliseconds: int | None) -> contextlib.AbstractAsyncContextManager[None]:
    """Cancels what awaits in the `with` block after this time, and raises DeadlineExceededError. None: never."""
    return contextlib.nullcontext() if milliseconds is None else _given_up_after(milliseconds)


@contextlib.asynccontextmanager
async def _given_up_after(milliseconds: int) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(milliseconds / 1000.0):
            yield
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"the text was not translated within its timeout_ms of {milliseconds}: allow more, or choose a level with "
            "fewer heads"
        ) from error


class WaitingLine:
    """Texts of one caller's streams that wait for a free place in the queue of one level. Lives on one event loop.

    Each stream has one text in the line at a time, so streams get free places in turn, one text each.
    """

    def __init__(self, caller: Caller = ANYONE) -> None:
        self._caller = caller
        self._first = asyncio.Lock()  # held by the first text in the line; a lock is first come, first served
        self._freed = asyncio.Event()
        self._subscribed = False

    async def submit(self, lease: Lease, text: str, options: DecodeOptions, target: Target) -> Future[Translation]:
        """Queues a text as soon as the queue has a free place. Errors: see `Lease.submit`, except OverloadedError."""
        async with self._first:
            while True:
                try:
                    return lease.submit(text, options, target, caller=self._caller)
                except OverloadedError:
                    await self._wait(lease)

    async def _wait(self, lease: Lease) -> None:
        """Returns when the queue has a free place, or when the level closes.

        Cancelling it leaves its subscription in place, so that a level never holds more than one of this line.
        """
        if not self._subscribed:
            self._subscribed = True
            self._freed.clear()
            loop = asyncio.get_running_loop()

            def notify() -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and so nothing waits
                    loop.call_soon_threadsafe(self._notify)

            lease.slot.translator.call_when_space(notify)
        await self._freed.wait()

    def _notify(self) -> None:
        self._subscribed = False
        self._freed.set()
