"""The RPCs of the server, called from HTTP by way of the same interceptors as calls of gRPC.

So tokens, limits, checks of fields, statuses and metrics are the same, whatever the door.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.http.context import HttpContext
from hmc.serving.http.statuses import HttpError

Handler: TypeAlias = Any
"""A `grpc.RpcMethodHandler`, which is generic for the type checker only."""
Given = Callable[[], Awaitable[Message]]
"""Reads the message of a request, or raises HmcError or HttpError. It is called when the call has been admitted."""


class Details(grpc.HandlerCallDetails):
    """What an interceptor reads before it has a context."""

    def __init__(self, method: str, metadata: tuple[tuple[str, str], ...]) -> None:
        self.method, self.invocation_metadata = method, metadata


class Methods:
    """Collects the method handlers of servicers, as a gRPC server does, and calls them."""

    def __init__(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> None:
        """interceptors: those of the gRPC server, the outermost first."""
        self._interceptors = tuple(interceptors)
        self._handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Part of what `add_…Servicer_to_server` calls; the registered handlers are enough."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Adds the methods of a service. service: its full name."""
        self._handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def has(self, service: ServiceDescriptor) -> bool:
        """Whether the service was added."""
        return any(name.startswith(f"/{service.full_name}/") for name in self._handlers)

    async def unary(self, method: MethodDescriptor, given: Given, context: HttpContext) -> Message:
        """Calls a method of one answer. Raises HttpError."""
        handler = await self._intercepted(path_of(method), lambda h: _with_message(h, given, context), context)
        return await _finish(handler.unary_unary(b"", context), method, context)

    async def answers(self, method: MethodDescriptor, given: Given, context: HttpContext) -> AsyncIterator[Message]:
        """Calls a method of many answers to one request. Raises HttpError, also between answers."""
        handler = await self._intercepted(path_of(method), lambda h: _with_message(h, given, context), context)
        async for answer in _each(handler.unary_stream(b"", context), method, context):
            yield answer

    async def stream(
        self,
        method: MethodDescriptor,
        requests: AsyncIterator[bytes],
        decode: Callable[[bytes], Awaitable[Message]],
        context: HttpContext,
    ) -> AsyncIterator[Message]:
        """Calls a method of many answers to many requests. decode: makes a message of a request, or raises HmcError."""

        def decoding(handler: Handler) -> Handler:
            return grpc.stream_stream_rpc_method_handler(handler.stream_stream, decode, handler.response_serializer)

        handler = await self._intercepted(path_of(method), decoding, context)
        async for answer in _each(handler.stream_stream(requests, context), method, context):
            yield answer

    async def handler(self, name: str, context: HttpContext) -> Any:
        """The handler of a method, wrapped by all interceptors, for requests that are bytes. name: its full name.

        Raises HttpError if there is no such method.
        """
        return await self._intercepted(name, lambda handler: handler, context)

    async def plain(self, name: str, behaviour: Callable[[], bytes], context: HttpContext) -> bytes:
        """Calls something that is no RPC, such as the metrics, as a method of this name, in a thread. Raises
        HttpError."""

        async def call(_request: object, _context: object) -> bytes:
            return await asyncio.to_thread(behaviour)

        made: Handler = grpc.unary_unary_rpc_method_handler(call, None, None)
        handler = await self._intercepted(name, lambda _: made, context, made)
        return bytes(await _aborting(handler.unary_unary(b"", context), context))

    async def _intercepted(
        self,
        name: str,
        change: Callable[[Handler], Handler],
        context: HttpContext,
        own: Handler | None = None,
    ) -> Any:
        """The handler of a method, wrapped by all interceptors."""
        original = own or self._handlers.get(name)
        if original is None:
            raise HttpError(grpc.StatusCode.UNIMPLEMENTED, f"this server does not offer {name}")
        if not _is_written(original):
            raise HttpError(grpc.StatusCode.UNIMPLEMENTED, f"this server does not offer {name} yet")
        details = Details(name, context.invocation_metadata())

        async def innermost(_details: grpc.HandlerCallDetails) -> Any:
            return change(original)

        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]] = innermost
        for interceptor in reversed(self._interceptors):
            continuation = _next(interceptor, continuation)
        handler = await continuation(details)
        if handler.request_deserializer is not None:  # no interceptor decodes
            handler = _decoded(handler)
        return handler


def path_of(method: MethodDescriptor) -> str:
    """The full name of a method, as gRPC writes it."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _is_written(handler: Handler) -> bool:
    """Whether a servicer has the method: generated base classes have plain functions in place of missing ones."""
    streams = handler.unary_stream or handler.stream_stream
    return inspect.isasyncgenfunction(streams) if streams else inspect.iscoroutinefunction(handler.unary_unary)


def _next(
    interceptor: grpc.aio.ServerInterceptor, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
) -> Callable[[grpc.HandlerCallDetails], Awaitable[Any]]:
    async def call(details: grpc.HandlerCallDetails) -> Any:
        return await interceptor.intercept_service(continuation, details)

    return call


def _with_message(handler: Handler, given: Given, context: HttpContext) -> Handler:
    """The same handler, whose request is what `given` reads in place of what the bytes say."""

    async def read() -> Message:
        try:
            return await given()
        except HttpError as error:
            context.refused = error
            raise InvalidRequestError(error.message) from error

    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, lambda _: read(), handler.response_serializer)
    return grpc.unary_stream_rpc_method_handler(handler.unary_stream, lambda _: read(), handler.response_serializer)


def _decoded(handler: Any) -> Any:
    """The same handler, which decodes its requests itself."""

    async def decode(data: bytes) -> Any:
        made = handler.request_deserializer(data)
        return await made if inspect.isawaitable(made) else made

    async def each(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in requests:
            yield await decode(data)

    async def unary(data: bytes, context: Any) -> Any:
        return await handler.unary_unary(await decode(data), context)

    async def answers(data: bytes, context: Any) -> AsyncIterator[Any]:
        async for answer in handler.unary_stream(await decode(data), context):
            yield answer

    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(unary)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(answers)
    return grpc.stream_stream_rpc_method_handler(lambda sent, context: handler.stream_stream(each(sent), context))


async def _finish(call: Awaitable[Any], method: MethodDescriptor, context: HttpContext) -> Message:
    return _message(await _aborting(call, context), method)


async def _aborting(call: Awaitable[Any], context: HttpContext) -> Any:
    """The result of a call. Raises HttpError if it was aborted or its deadline passed."""
    try:
        async with asyncio.timeout(context.time_remaining()):
            return await call
    except grpc.aio.AbortError:
        raise context.error() from None
    except TimeoutError:
        raise _late() from None


async def _each(answers: AsyncIterator[Any], method: MethodDescriptor, context: HttpContext) -> AsyncIterator[Message]:
    while True:
        try:
            async with asyncio.timeout(context.time_remaining()):
                answer = await anext(answers)
        except StopAsyncIteration:
            return
        except grpc.aio.AbortError:
            raise context.error() from None
        except TimeoutError:
            raise _late() from None
        yield _message(answer, method)


def _late() -> HttpError:
    return HttpError(grpc.StatusCode.DEADLINE_EXCEEDED, "the time of X-Timeout-Ms has passed")


def _message(answer: Any, method: MethodDescriptor) -> Message:
    if isinstance(answer, Message):
        return answer
    return GetMessageClass(method.output_type).FromString(bytes(answer))
