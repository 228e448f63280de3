"""The client for asyncio. Its methods are those of `Client`, with the same arguments, checks, retries and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hmc.artifact.errors import HmcError, UnavailableError
from hmc.serving.client import calls
from hmc.serving.client.aio_status import Ending
from hmc.serving.client.aio_stream import AsyncTextStream
from hmc.serving.client.calls import Call, Level, Texts, Translating, Where
from hmc.serving.client.connection import Addresses, Pair, connection
from hmc.serving.client.errors import domain_errors, why_not_ready
from hmc.serving.client.retries import Attempts, Retry
from hmc.serving.client.window import Streaming, Window
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import Answer, DocumentPiece, LevelInfo, LevelList, ModelInfo, Partial, StreamAnswer
from hmc.serving.wire.metadata import KEY
from hmc.v1 import translation_pb2_grpc as rpc

T = TypeVar("T")


class AsyncClient:
    """As `Client`, for asyncio: use it in an `async with` block, on one event loop.

    Methods that return one answer are coroutines. Those that yield are asynchronous generators: leaving one early
    cancels its call at once inside `contextlib.aclosing`, and otherwise when the generator is collected.
    """

    def __init__(
        self,
        address: Addresses,
        *,
        token: str | None = None,
        tls_ca: Path | str | None = None,
        tls_pair: Pair | None = None,
        retry: Retry | None = None,
        connections: int = 1,
    ) -> None:
        """See `Client.__init__`. Make it where the event loop runs."""
        self._connection = connection(address, token, tls_ca, tls_pair, connections)
        self.address = self._connection.name
        self._retry = retry or Retry()
        target, options, credentials = self._connection.target, self._connection.options, self._connection.credentials
        self._channels = [
            grpc.aio.insecure_channel(target, options)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials, options)
            for _ in range(connections)
        ]
        self._turns: Iterator[Any] = cycle([rpc.TranslationServiceStub(channel) for channel in self._channels])
        self._admin: Any = rpc.AdminServiceStub(self._channels[0])
        self._health: Any = health_pb2_grpc.HealthStub(self._channels[0])

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
        window = Window(level, options, **more)
        stream = AsyncTextStream(window, texts, target_prefixes)
        attempts = Attempts(self._retry, timeout)
        metadata = ((KEY, window.request_id), *self._connection.metadata)

        async def opened(requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
            with domain_errors(self.address, window.request_id):
                call = next(self._turns).TranslateStream(requests, timeout=attempts.seconds_left(), metadata=metadata)
                ending = Ending(call)
                try:
                    async for message in call:
                        yield message
                except grpc.aio.AioRpcError as error:
                    raise await ending.sent(error) from error
                finally:
                    call.cancel()

        return stream.answers(opened, attempts)

    async def score(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        level: Level = None,
        options: DecodeOptions | None = None,
        timeout: float | None = None,
        **where: Unpack[Where],
    ) -> Answer:
        """See `Client.opened`."""
        return await self._ask(calls.score(texts, references, level, options, timeout, **where))

    async def models(self, timeout: float | None = None, *, request_id: str | None = None) -> tuple[ModelInfo, ...]:
        """See `Client.models`."""
        return await self._ask(calls.models(timeout, request_id))

    async def levels(
        self, timeout: float | None = None, *, model: str | None = None, request_id: str | None = None
    ) -> LevelList:
        """See `Client.levels`."""
        return await self._ask(calls.levels(timeout, model, request_id))

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
        end = time.monotonic() + timeout
        request = health_pb2.HealthCheckRequest(service=calls.SERVICE)
        reason = calls.NO_ANSWER
        while (left := end - time.monotonic()) > 0:
            try:
                status = (await self._health.Check(request, timeout=left)).status
                if status == health_pb2.HealthCheckResponse.SERVING:
                    return
                reason = calls.NOT_SERVING
            except grpc.RpcError as error:
                reason = why_not_ready(self.address, error) or reason
            await asyncio.sleep(min(0.05, max(0.0, end - time.monotonic())))
        raise UnavailableError(f"{self.address} is not ready after {timeout:g} s: {reason}")

    async def close(self) -> None:
        """See `Client.close`."""
        await asyncio.gather(*(channel.close() for channel in self._channels))

    async def _ask(self, call: Call[T]) -> T:
        method, metadata = self._method(call)
        attempts = Attempts(self._retry, call.timeout, again=not call.changes)
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    message = await method(call.request, timeout=attempts.seconds_left(), metadata=metadata)
                    return call.convert(message)
            except HmcError as error:
                await asyncio.sleep(attempts.wait_s(error))

    async def _pieces(self, call: Call[T]) -> AsyncGenerator[T, None]:
        method, metadata = self._method(call)
        attempts, begun = Attempts(self._retry, call.timeout), False
        while True:
            try:
                with domain_errors(self.address, call.request_id):
                    answers = method(call.request, timeout=attempts.seconds_left(), metadata=metadata)
                    try:
                        async for message in answers:
                            begun = True
                            yield call.convert(message)
                        return
                    finally:
                        answers.cancel()
            except HmcError as error:
                if begun:
                    raise
                await asyncio.sleep(attempts.wait_s(error))

    def _method(self, call: Call[Any]) -> tuple[Any, tuple[tuple[str, str], ...]]:
        stub = self._admin if call.changes else next(self._turns)
        return getattr(stub, call.method), self._connection.metadata_of(call)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
