"""What the client for asyncio does otherwise than `transport`: it awaits, and a task reads the texts of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable
from itertools import repeat
from typing import Any, ClassVar, TypeVar

import grpc
import grpc.aio

from hmc.serving.client.calls import Call
from hmc.serving.client.core import ClientCore
from hmc.serving.client.failures import Attempts, domain_errors
from hmc.serving.client.window import END, Window, check_texts
from hmc.serving.requests.results import StreamAnswer
from hmc.v1 import translation_pb2 as pb

T = TypeVar("T")
OWN_ERROR = "Internal error from Core"
"""How grpc.aio words an error of its own."""
POLLS = 100
POLL_S = 0.005
"""How often the status that this error hides is looked for, and the seconds in between."""


class AsyncTransport(ClientCore):
    """A client of `grpc.aio`, for one event loop."""

    _grpc: ClassVar[Any] = grpc.aio

    async def close(self) -> None:
        """Closes the connection, and cancels the calls that run on it."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _messages(
        self, call: Call[Any], send: Callable[..., Any], request: Any, attempts: Attempts
    ) -> AsyncGenerator[Any, None]:
        """What the server sends in one attempt of a call with many answers. Ends the call when it is left."""
        with domain_errors(self.address, call.request_id):
            answers = send(request, timeout=attempts.seconds_left())
            ending = _Ending(answers)
            try:
                async for message in answers:
                    yield message
            except grpc.aio.AioRpcError as error:
                sent = await ending.sent(error)
                if sent is error:
                    raise
                raise sent from error
            finally:
                answers.cancel()


class AsyncRequests:
    """The requests of a stream of texts: a task reads the texts while the caller takes answers."""

    def __init__(
        self,
        window: Window,
        texts: Iterable[str] | AsyncIterable[str],
        prefixes: Iterable[str] | AsyncIterable[str] | None,
    ) -> None:
        """prefixes: one target prefix for each text; None: no text has one. Raises InvalidRequestError."""
        check_texts(texts, prefixes)
        self.window = window
        self._texts = _items(texts)
        self._prefixes = _items(repeat("") if prefixes is None else prefixes)
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    def connect(self) -> AsyncIterator[pb.TranslateStreamRequest]:
        """The requests of a new connection. Those of the last one end."""
        return self._each(self._begin())

    def answered(self, message: pb.TranslateStreamResponse) -> list[StreamAnswer]:
        """See `Window.answer`."""
        ready = self.window.answer(message)
        self._changed.set()
        return ready

    async def end(self) -> None:
        """The requests of the last connection end, and the reading of texts."""
        self._begin()
        reader = self._reader
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])

    def _begin(self) -> int:
        self._changed.set()
        return self.window.connect()

    async def _each(self, connection: int) -> AsyncIterator[pb.TranslateStreamRequest]:
        while not self.window.is_over(connection):
            request = self.window.take()
            if request is not None:
                yield request
                continue
            if self.window.room and not self.window.reading:
                self.window.reading = True
                self._reader = asyncio.create_task(self._read())
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        """Reads texts while there is room. The end of a connection does not end it: a text goes to the connection that
        is there when it comes."""
        try:
            while self.window.room:
                text = await anext(self._texts, END)
                if text is END:
                    self.window.end()
                else:
                    self.window.add(text, await anext(self._prefixes, None))
                self._changed.set()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised again by `Window.finish`
            self.window.end(error)
        finally:
            self.window.reading = False
            self._reader = None
            self._changed.set()


async def _items(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class _Ending:
    """Keeps every status that a call gets. Make it before the first answer is awaited.

    If a call ends while a request is being written, grpc.aio puts an error of its own before or in place of the
    server's status, and so hides it.
    """

    def __init__(self, call: Any) -> None:
        """call: of `grpc.aio`."""
        self._seen: list[grpc.aio.AioRpcError] = []
        call.add_done_callback(self._ended)

    def _ended(self, call: Any) -> None:
        none = grpc.aio.Metadata()
        trailers = _now(call.trailing_metadata()) or none
        self._seen.append(grpc.aio.AioRpcError(_now(call.code()), none, trailers, _now(call.details())))

    async def sent(self, error: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The error with which the server ended the call, if `error` hides it. Otherwise `error`.

        UNAVAILABLE if no other status comes within half a second: the connection broke while a request was sent.
        """
        if not _hides(error):
            return error
        for _ in range(POLLS):
            for seen in self._seen:
                if not _hides(seen):
                    return seen
            await asyncio.sleep(POLL_S)
        none = grpc.aio.Metadata()
        return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, none, none, "the connection broke")


def _hides(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.INTERNAL and OWN_ERROR in (error.details() or "")


def _now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that has nothing to wait for: an ended call has its status."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("an ended call of grpc.aio has no status")
