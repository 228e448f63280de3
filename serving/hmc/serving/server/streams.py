"""Streams of texts: how many are under way, whose turn it is at a full queue, and the answer of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from hmc.artifact.errors import DeadlineExceededError, OverloadedError, UnavailableError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.levels.slots import Lease
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import Answer, Translation
from hmc.serving.server.observing.metrics import RequestRecord
from hmc.serving.wire.rules import AnswerSize


class StreamText(RequestRecord):
    """A text of a stream. Make it when the text is read, and begin it in its `with` block: an error that leaves the
    block becomes the answer of this text, and the other texts of the stream go on."""

    def __init__(self, count: Callable[[RequestRecord, BaseException | None], None], text_id: str) -> None:
        """count: see `RequestRecord`. text_id: the id that the client gave the text."""
        super().__init__(count)
        self.id = text_id
        self.future: asyncio.Future[Any]
        """Done when there is an answer. Cancelling it gives the text up. Set when the `with` block has been left."""
        self._lease: Lease | None = None
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None

    def served_by(self, lease: Lease) -> None:
        """The level that translates the text. The lease ends with the text."""
        super().served_by(lease)
        self._lease = lease

    def wait_for(self, translation: asyncio.Future[Translation], until: float | None, within_ms: int) -> None:
        """The translation, which the text takes as its own: it is cancelled with it. until: the time of the event loop
        at which the text fails, because it may take `within_ms`. None: it may take any time."""
        self.future = translation
        translation.add_done_callback(self._done)
        if until is not None:
            self._timer = translation.get_loop().call_at(until, self._expire, within_ms)

    def result(self) -> Answer:
        """The answer, or the error of the text, which is raised. Call it when `future` is done."""
        if self._error is not None:
            raise self._error
        assert self.answer is not None
        return self.answer

    def __exit__(  # type: ignore[override]  # an error does not leave the block
        self, _kind: object, error: BaseException | None, _trace: object
    ) -> bool:
        if error is None:
            return False
        self._end(error)
        self.future = asyncio.get_running_loop().create_future()
        self.future.set_result(None)
        return isinstance(error, Exception)

    def _expire(self, within_ms: int) -> None:
        if not self.future.done():
            self.future.set_exception(out_of_time(within_ms))

    def _done(self, translation: asyncio.Future[Translation]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if translation.cancelled():
            self._end(asyncio.CancelledError())
        elif (error := translation.exception()) is not None:
            self._end(error)
        else:
            assert self._lease is not None
            try:
                self.answer = answer_of([AnswerSize().add(translation.result())], self._lease)
            except Exception as failure:  # noqa: BLE001 - such as an answer that is too large; it is this text's error
                self._end(failure)
            else:
                self._end(None)

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        if self._lease is not None:
            self._lease.end()
        self._count(self, error)


def out_of_time(milliseconds: int) -> DeadlineExceededError:
    """The error of a text that was not translated within its own time."""
    return DeadlineExceededError(
        f"the text was not translated within its timeout_ms of {milliseconds}: allow more, or choose a level with "
        "fewer heads"
    )


def answer_of(translations: Sequence[Translation], lease: Lease) -> Answer:
    """The answer to a call, with the times of its texts together. Blank texts took none."""
    computed = [t for t in translations if not t.blank]
    queue_s = min((t.queue_s for t in computed), default=0.0)
    end_s = max((t.queue_s + t.compute_s for t in computed), default=0.0)
    times = 1000.0 * queue_s, 1000.0 * (end_s - queue_s)
    return Answer(tuple(translations), lease.level.name, lease.bundle_version, *times)


class WaitingLine:
    """Texts of one caller's streams that wait for a free place in the queue of one level. Lives on one event loop.

    Each stream has one text in the line at a time, so streams get free places in turn, one text each.
    """

    def __init__(self) -> None:
        self._first = asyncio.Lock()  # held by the first text in the line; a lock is first come, first served
        self._freed = asyncio.Event()
        self._subscribed = False

    async def submit(
        self, lease: Lease, text: str, options: DecodeOptions, target: Target, *, line: bool = False
    ) -> Future[Translation]:
        """Queues a text as soon as the queue has a free place. line: see `Translator.submit`. Errors: see
        `Lease.submit`, except OverloadedError."""
        async with self._first:
            while True:
                try:
                    return lease.submit(text, options, target, line=line)
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


Request = TypeVar("Request")


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


class UnderWay(Protocol):
    """A request of a stream that was begun."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """Done when there is an answer. Cancelling it gives the request up."""


Begun = TypeVar("Begun", bound=UnderWay)


async def answer_each(
    requests: AsyncIterable[Request],
    begin: Callable[[Request], Awaitable[Begun]],
    window: int,
    closing: asyncio.Event,
) -> AsyncIterator[Begun]:
    """Yields what `begin` made of all requests, in the order in which their answers are ready.

    At most `window` requests are under way: begun, and not yet taken from this iterator. The next request
    is read only when `begin` of the one before has returned, which means that it has its place in a level's queue. So a
    full queue, a slow engine and a slow reader all hold up the sender. No request costs a task of its own.

    When `closing` is set, no more requests are read, those under way are answered, and UnavailableError ends
    the stream. An error raised by `begin` or by `requests` ends the stream with that error. When the stream ends early,
    all requests under way are cancelled.
    """
    free = asyncio.Semaphore(window)
    finished: asyncio.Queue[Begun | None] = asyncio.Queue()
    running: dict[asyncio.Future[Any], Begun] = {}
    beginning = False
    cut_off = False

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
                yield ended
                free.release()
        if closing.is_set() and cut_off:
            raise UnavailableError("the server is shutting down; send the unanswered texts to another one")
        reader.result()
    finally:
        pending = [reader, closer, *running]
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
