"""A stream of texts, with asyncio: a task reads the texts while the caller takes answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from itertools import repeat
from typing import Any, TypeVar

from hmc.artifact.errors import HmcError
from hmc.serving.client.retries import Attempts
from hmc.serving.client.window import Window, check_texts
from hmc.serving.requests.results import StreamAnswer
from hmc.v1 import translation_pb2 as pb

T = TypeVar("T")
_END: Any = object()
Opened = Callable[[AsyncIterator[pb.TranslateStreamRequest]], AsyncGenerator[Any, None]]


class AsyncTextStream:
    """As `TextStream`, on one event loop."""

    def __init__(
        self,
        window: Window,
        texts: Iterable[str] | AsyncIterable[str],
        prefixes: Iterable[str] | AsyncIterable[str] | None,
    ) -> None:
        """prefixes: one target prefix for each text; None: no text has one. Raises InvalidRequestError."""
        check_texts(texts, prefixes)
        self._window = window
        self._texts = _each(texts)
        self._prefixes = _each(repeat("") if prefixes is None else prefixes)
        self._changed = asyncio.Event()
        self._attempt = 0
        self._reader: asyncio.Task[None] | None = None

    async def answers(self, opened: Opened, attempts: Attempts) -> AsyncGenerator[StreamAnswer, None]:
        """Yields the answers. opened: sends the requests on a new connection, yields what the server sends, and raises
        an HmcError when it breaks."""
        try:
            while True:
                try:
                    async with aclosing(opened(self._requests(self._begin()))) as messages:
                        async for message in messages:
                            attempts.answered()
                            ready = self._window.answer(message)
                            self._changed.set()
                            for answer in ready:
                                yield answer
                    break
                except HmcError as error:
                    await asyncio.sleep(attempts.wait_s(error))
            self._window.finish()
        finally:
            self._begin()
            reader = self._reader
            if reader is not None:
                reader.cancel()
                await asyncio.wait([reader])

    def _begin(self) -> int:
        """Ends the requests of the last connection. Returns the number of the next one."""
        self._attempt += 1
        self._window.send_again()
        self._changed.set()
        return self._attempt

    async def _requests(self, attempt: int) -> AsyncIterator[pb.TranslateStreamRequest]:
        while self._attempt == attempt:
            request = self._window.take()
            if request is not None:
                yield request
                continue
            if self._window.ended:
                return
            if self._reader is None and self._window.room:
                self._reader = asyncio.create_task(self._read())
            self._changed.clear()
            await self._changed.wait()

    async def _read(self) -> None:
        """Reads texts while there is room. The end of a connection does not end it: a text goes to the connection that
        is there when it comes."""
        try:
            while self._window.room:
                text = await anext(self._texts, _END)
                if text is _END:
                    self._window.end()
                else:
                    self._window.add(text, await anext(self._prefixes, None))
                self._changed.set()
        except Exception as error:  # noqa: BLE001 - raised again by `Window.finish`
            self._window.end(error)
        finally:
            self._reader = None
            self._changed.set()


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
