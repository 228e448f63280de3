"""The client for asyncio. Its methods are those of `Client`, with the same arguments, checks, retries and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack

import grpc
import grpc.aio

from hmc.artifact.errors import HmcError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client import calls
from hmc.serving.client.calls import Call, Level, Streaming, Texts, Translating, Where
from hmc.serving.client.core import ClientCore, Readiness
from hmc.serving.client.failures import Attempts, domain_errors
from hmc.serving.client.window import END, Window, check_texts
from hmc.serving.requests.results import (
    Answer,
    DocumentPiece,
    LevelInfo,
    LevelList,
    ModelInfo,
    Partial,
    ServerStatus,
    StreamAnswer,
)
from hmc.v1 import translation_pb2 as pb

T = TypeVar("T")
OWN_ERROR = "Internal error from Core"
"""How grpc.aio words an error of its own."""
POLLS = 100
POLL_S = 0.005
"""How often the status that this error hides is looked for, and the seconds in between."""


class AsyncClient(ClientCore):
    """As `Client`, for asyncio: use it in an `async with` block, on one event loop. Make it where that runs.

    Methods that return one answer are coroutines. Methods that yield are asynchronous generators: leaving one early
    cancels its call at once inside `contextlib.aclosing`, and otherwise when the generator is collected.
    """

    _grpc: ClassVar[Any] = grpc.aio

    async def translate(
        self,
        texts: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **more: Unpack[Translating],
    ) -> Answer:
        """See `Client.translate`."""
        return await self._ask(calls.translate(texts, level, options, timeout, **more))

    def translate_document(
        self,
        text: str,
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **more: Unpack[Texts],
    ) -> AsyncGenerator[DocumentPiece, None]:
        """See `Client.translate_document`."""
        return self._pieces(calls.translate_document(text, level, options, timeout, **more))

    def translate_tokens(
        self,
        text: str,
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefix: str = "",
        **where: Unpack[Where],
    ) -> AsyncGenerator[Partial, None]:
        """See `Client.translate_tokens`."""
        return self._pieces(calls.translate_tokens(text, level, options, timeout, target_prefix=target_prefix, **where))

    def translate_stream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        *,
        target_prefixes: Iterable[str] | AsyncIterable[str] | None = None,
        **more: Unpack[Streaming],
    ) -> AsyncGenerator[StreamAnswer, None]:
        """See `Client.translate_stream`."""
        call, window = calls.translate_stream(level, options, timeout, **more)
        return self._streamed(call, _Requests(window, texts, target_prefixes), self._attempts(call))

    async def score(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **where: Unpack[Where],
    ) -> Answer:
        """See `Client.score`."""
        return await self._ask(calls.score(texts, references, level, options, timeout, **where))

    async def models(self, timeout: float | None = None, *, request_id: str | None = None) -> tuple[ModelInfo, ...]:
        """See `Client.models`."""
        return await self._ask(calls.models(timeout, request_id))

    async def levels(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelList:
        """See `Client.levels`."""
        return await self._ask(calls.levels(timeout, model, request_id))

    async def status(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> ServerStatus:
        """See `Client.status`."""
        return await self._ask(calls.status(timeout, model, request_id))

    async def load_level(
        self, name: str, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelInfo:
        """See `Client.load_level`."""
        return await self._ask(calls.change_level("LoadLevel", name, timeout, model, request_id))

    async def unload_level(
        self, name: str, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelInfo:
        """See `Client.unload_level`."""
        return await self._ask(calls.change_level("UnloadLevel", name, timeout, model, request_id))

    async def set_default_level(
        self, name: str, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelInfo:
        """See `Client.set_default_level`."""
        return await self._ask(calls.change_level("SetDefaultLevel", name, timeout, model, request_id))

    async def reload(
        self, bundle: Path | str | None = None, timeout: float | None = None, *, model: str | None = None,
        request_id: str | None = None,
    ) -> str:  # fmt: skip
        """See `Client.reload`."""
        return await self._ask(calls.reload(bundle, timeout, model, request_id))

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """See `Client.wait_ready`."""
        ready = Readiness(self.address, timeout)
        while (left := ready.seconds_left()) > 0:
            try:
                if ready.serves(await self._health.Check(ready.request, timeout=left)):
                    return
            except grpc.RpcError as error:
                ready.failed(error)
            await asyncio.sleep(ready.pause_s())
        raise ready.error()

    async def close(self) -> None:
        """See `Client.close`."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _ask(self, call: Call[T]) -> T:
        send = self._sender(call)
        attempts = self._attempts(call)
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    return call.convert(await send(call.request, timeout=attempts.seconds_left()))
            except HmcError as error:
                await asyncio.sleep(attempts.wait_s(error))

    async def _pieces(self, call: Call[T]) -> AsyncGenerator[T, None]:
        send = self._sender(call)
        attempts = self._attempts(call)
        begun = False
        while True:
            try:
                async with aclosing(self._messages(call, send, call.request, attempts)) as messages:
                    async for message in messages:
                        begun = True
                        yield call.convert(message)
                return
            except HmcError as error:
                if begun:
                    raise
                await asyncio.sleep(attempts.wait_s(error))

    async def _streamed(
        self, call: Call[list[StreamAnswer]], requests: _Requests, attempts: Attempts
    ) -> AsyncGenerator[StreamAnswer, None]:
        try:
            while True:
                try:
                    messages = self._messages(call, self._sender(call), requests.connect(), attempts)
                    async with aclosing(messages):
                        async for message in messages:
                            attempts.answered()
                            for answer in requests.answered(message):
                                yield answer
                    break
                except HmcError as error:
                    await asyncio.sleep(attempts.wait_s(error))
            requests.window.finish()
        finally:
            await requests.end()

    async def _messages(
        self, call: Call[Any], send: Callable[..., Any], request: Any, attempts: Attempts
    ) -> AsyncGenerator[Any, None]:
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

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Requests:
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
