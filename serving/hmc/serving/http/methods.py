"""The methods of the server's services, called without gRPC, through the same edge as calls of gRPC.

So tokens, limits, checks of fields, statuses and metrics are the same, whatever the door.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.http.call import HttpError, PlainCall

Handler: TypeAlias = Any
"""A `grpc.RpcMethodHandler`: a servicer's method, and what decodes its requests."""
Wrap = Callable[[str, Handler], "Handler | None"]
"""The server's edge, see `Edge.wrap`: (`/SERVICE/METHOD`, handler) → the handler to call, which decodes
requests itself; None for a method that the servicer does not have."""
Given = Callable[[], Awaitable[Message]]
"""Reads the message of a request, or raises HmcError or HttpError. It is called when the call has been admitted."""
Decode = Callable[[bytes], Awaitable[Message]]
"""Makes a message of a request, or raises HmcError."""


class Methods:
    """Collects the method handlers of servicers, as a gRPC server does, and calls them."""

    def __init__(self, wrap: Wrap) -> None:
        self._wrap = wrap
        self._handlers: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """`add_…Servicer_to_server` calls this too. The registered handlers are enough."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Adds the methods of a service. service: its full name."""
        self._handlers.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def has(self, service: ServiceDescriptor) -> bool:
        """Whether the service was added."""
        return any(name.startswith(f"/{service.full_name}/") for name in self._handlers)

    async def unary(self, method: MethodDescriptor, given: Given, call: PlainCall) -> Message:
        """Calls a method of one answer. Raises HttpError."""
        handler = self.handler(path_of(method), _read_from(given, call))
        return _message(await _in_time(handler.unary_unary(b"", call), call), method)

    async def answers(self, method: MethodDescriptor, given: Given, call: PlainCall) -> AsyncIterator[Message]:
        """Calls a method of many answers to one request. Raises HttpError, also between answers."""
        handler = self.handler(path_of(method), _read_from(given, call))
        async for answer in _each(handler.unary_stream(b"", call), method, call):
            yield answer

    async def stream(
        self, method: MethodDescriptor, requests: AsyncIterator[bytes], decode: Decode, call: PlainCall
    ) -> AsyncIterator[Message]:
        """Calls a method of many answers to many requests. Raises HttpError, also between answers."""
        handler = self.handler(path_of(method), decode)
        async for answer in _each(handler.stream_stream(requests, call), method, call):
            yield answer

    def handler(self, name: str, decode: Decode | None = None) -> Handler:
        """The handler of a method, for requests that are bytes. name: its full name. decode: in place of the method's
        own way. Raises HttpError if there is no such method."""
        handler = self._handlers.get(name)
        if handler is None:
            raise HttpError(grpc.StatusCode.UNIMPLEMENTED, f"this server does not offer {name}")
        return self._wrapped(name, handler if decode is None else _decoding(handler, decode))

    async def plain(self, name: str, behaviour: Callable[[], bytes], call: PlainCall) -> bytes:
        """Calls something that is no RPC, such as the metrics, as a method of this name, in a thread. Raises
        HttpError."""

        async def run(_request: object, _call: object) -> bytes:
            return await asyncio.to_thread(behaviour)

        handler = self._wrapped(name, grpc.unary_unary_rpc_method_handler(run, None, None))
        return bytes(await _in_time(handler.unary_unary(b"", call), call))

    def _wrapped(self, name: str, handler: Handler) -> Handler:
        wrapped = self._wrap(name, handler)
        if wrapped is None:
            raise HttpError(grpc.StatusCode.UNIMPLEMENTED, f"this server does not offer {name} yet")
        return wrapped


def path_of(method: MethodDescriptor) -> str:
    """The full name of a method, as gRPC writes it."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _read_from(given: Given, call: PlainCall) -> Decode:
    """What `given` reads, in place of what the bytes say."""

    async def read(_data: bytes) -> Message:
        try:
            return await given()
        except HttpError as error:
            call.refused = error
            raise InvalidRequestError(error.message) from error

    return read


def _decoding(handler: Handler, decode: Decode) -> Handler:
    """The same handler with another way to decode requests."""
    serialize = handler.response_serializer
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, decode, serialize)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(handler.unary_stream, decode, serialize)
    return grpc.stream_stream_rpc_method_handler(handler.stream_stream, decode, serialize)


async def _in_time(work: Awaitable[Any], call: PlainCall) -> Any:
    """The result of a call. Raises HttpError if its deadline passes."""
    try:
        async with asyncio.timeout(call.time_remaining()):
            return await work
    except TimeoutError:
        raise HttpError(grpc.StatusCode.DEADLINE_EXCEEDED, "the time of X-Timeout-Ms has passed") from None


async def _each(answers: AsyncIterator[Any], method: MethodDescriptor, call: PlainCall) -> AsyncIterator[Message]:
    while True:
        try:
            answer = await _in_time(anext(answers), call)
        except StopAsyncIteration:
            return
        yield _message(answer, method)


def _message(answer: Any, method: MethodDescriptor) -> Message:
    if isinstance(answer, Message):
        return answer
    return GetMessageClass(method.output_type).FromString(bytes(answer))
