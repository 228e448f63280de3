"""Answers that end when their reader leaves: one JSON, server-sent events, or JSON lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from contextvars import Context
from typing import Any, TypeVar

from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hmc.serving.http.bodies import dump, json_of
from hmc.serving.http.call import HttpError

T = TypeVar("T")
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
Write = Callable[[bytes], Awaitable[None]]
LINGER_S = 1.0
"""Seconds in which a client that still sends can end its body after the last line of the answer."""


async def unless(left: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T], context: Context | None = None) -> T:
    """Awaits `work`, and cancels it when `left` ends first. context: the context in which it runs. None: a copy of the
    present context."""
    working = asyncio.create_task(work, context=context)
    leaving = asyncio.create_task(left)
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
        return await working
    finally:
        leaving.cancel()
        working.cancel()


async def gone(request: Request) -> None:
    """Returns when the client closes the connection. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(data: bytes, name: str = "") -> bytes:
    """A server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


class Answers(Response):
    """Writes messages as they come, as server-sent events or as JSON lines.

    An error before the first message is an answer with its HTTP status. A later error is the last event, `error`, or
    the last line, `{"error": …}`. After the last message, an event `end` says that nothing is missing.
    """

    def __init__(
        self,
        first: Message | None,
        answers: AsyncIterator[Message],
        kind: str,
        headers: dict[str, str],
        left: Coroutine[Any, Any, None],
        context: Context,
        sent: Lines | None = None,
    ) -> None:
        """first: None if there are no messages. left: ends when the client leaves. context: in which `first` was
        awaited: what a call sets there is needed until it ends. sent: what the client may still send."""
        super().__init__(media_type=kind, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._first = first
        self._answers = answers
        self._events = kind == EVENTS
        self._left = left
        self._context = context
        self._sent = sent

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        writing = asyncio.create_task(self._write(write), context=self._context)
        waited = {writing, asyncio.create_task(self._left)}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = writing.done()
            for task in waited:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await writing
        if ended:
            if self._sent is not None:
                await self._sent.rest()
            await send({"type": "http.response.body", "body": b""})

    async def _write(self, write: Write) -> None:
        async with aclosing(self._answers):  # type: ignore[type-var]  # they are generators
            try:
                if self._first is not None:
                    await write(self._frame(await json_of(self._first)))
                async for message in self._answers:
                    await write(self._frame(await json_of(message)))
            except HttpError as error:
                body = error.body()
                await write(event(dump(body), "error") if self._events else dump({"error": body}) + b"\n")
                return
            if self._events:
                await write(event(b"{}", "end"))

    def _frame(self, data: bytes) -> bytes:
        return event(data) if self._events else data + b"\n"


class BodyLine(bytes):
    """A line of a body."""

    number: int
    """From 1; empty lines count."""
    is_cut: bool
    """Whether it is longer than a line may be, and cut."""


class Lines:
    """The lines of a body, without empty ones, while they arrive. Each byte is looked at once."""

    def __init__(self, request: Request, most: int) -> None:
        """most: bytes of the longest line. A longer one is cut, and is the last."""
        self._request = request
        self._most = most
        self._ended = asyncio.Event()
        self._broken = False
        self._number = 0

    async def __aiter__(self) -> AsyncGenerator[BodyLine]:
        """Raises CancelledError if the client leaves before the end."""
        rest = bytearray()
        try:
            async for part in self._request.stream():
                first, *following = part.split(b"\n")
                rest += first
                for each in following:
                    line = self._line(rest)
                    if line.is_cut or line.strip():
                        yield line
                    if line.is_cut:
                        return
                    rest = bytearray(each)
                if len(rest) > self._most:
                    yield self._line(rest)
                    return
        except ClientDisconnect:
            self._broken = True
            raise asyncio.CancelledError from None
        else:
            if rest.strip():
                yield self._line(rest)
        finally:
            self._ended.set()

    def _line(self, content: bytearray) -> BodyLine:
        self._number += 1
        line = BodyLine(content[: self._most])
        line.number = self._number
        line.is_cut = len(content) > self._most
        return line

    async def disconnected(self) -> None:
        """Returns when the client has left. While texts wait to be read, a client that leaves is not noticed."""
        await self._ended.wait()
        if not self._broken:
            await gone(self._request)

    async def rest(self) -> None:
        """Reads further bytes of the client for at most LINGER_S, and drops them. A connection that is closed while
        something is unread is reset, and the client may lose the end of the answer."""
        with suppress(TimeoutError, ClientDisconnect, RuntimeError):  # the last: everything has been read
            async with asyncio.timeout(LINGER_S):
                async for _ in self._request.stream():
                    pass
