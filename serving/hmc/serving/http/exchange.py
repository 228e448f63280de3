"""Answers that end when their reader leaves: one JSON, server-sent events, or JSON lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeVar

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hmc.serving.http.bodies import dump, json_of
from hmc.serving.http.statuses import HttpError

T = TypeVar("T")
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
Write = Callable[[bytes], Awaitable[None]]


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Awaits `work`, and cancels it if the client closes the connection. The body must have been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
        return await working
    finally:
        leaving.cancel()
        working.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: bytes, name: str = "") -> bytes:
    """A server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + data + b"\n\n"


class Answers(Response):
    """Writes messages as they come, as server-sent events or as JSON lines.

    An error before the first message is an answer with its HTTP status. A later one is the last event, `error`, or the
    last line, `{"error": …}`. After the last message, an event `end` says that nothing is missing.
    """

    def __init__(
        self, first: Message | None, answers: AsyncIterator[Message], kind: str, headers: dict[str, str], watch: bool
    ) -> None:
        """first: None if there are no messages. watch: whether to stop reading when the client leaves; somebody else
        reads the connection otherwise."""
        super().__init__(media_type=kind, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._first, self._answers, self._events, self._watch = first, answers, kind == EVENTS, watch

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

        async def write(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        writing = asyncio.create_task(self._write(write))
        waited: set[asyncio.Task[None]] = {writing}
        if self._watch:
            waited.add(asyncio.create_task(_gone(receive)))
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = writing.done()
            for task in waited:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await writing
        if ended:
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


async def lines(request: Request, most: int) -> AsyncIterator[bytes]:
    """The lines of a body, without empty ones, while they arrive. Ends with an error line if one is longer than `most`
    bytes: the line is then cut, so it is no JSON. Raises CancelledError if the client leaves."""
    rest = b""
    async for part in request.stream():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > most:
            yield rest[:most]
            return
    if rest.strip():
        yield rest
