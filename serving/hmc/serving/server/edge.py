"""Wraps every call: checks whether it may start, decodes its requests, and turns errors into statuses."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.serving.requests.call import PresentCall, enter
from hmc.serving.server.access.entry import CallInfo, Entry
from hmc.serving.wire.metadata import KEY, new_id, retry_trailers, sent_id
from hmc.serving.wire.status import code_of, message_of, new_reference, trailers_of

log = logging.getLogger(__name__)

UNCHECKED_SERVICES = ("/grpc.health.v1.Health/",)
"""Health checks are not wrapped: probes send no token, and must get an answer while the server starts or drains."""

if TYPE_CHECKING:  # this type is generic for the type checker only
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
Count = Callable[[PresentCall, grpc.StatusCode, BaseException | None], None]


class Edge:
    """Wraps every method except health checks.

    It decodes requests itself: gRPC would answer bytes that are not a message of the method with INTERNAL.
    """

    def __init__(self, entry: Entry, count: Count) -> None:
        """entry: raises if a call may not start. count: called with each call that has ended, its status and its
        error."""
        self._entry = entry
        self._count = count

    def wrap(self, method: str, handler: Handler | None) -> Handler | None:
        """The handler with all that happens around it; None for a method that is not offered. Other doors than gRPC's
        call it with a `CallInfo` in place of gRPC's context. method: its full name."""
        if handler is None or method.startswith(UNCHECKED_SERVICES):
            return handler
        wrapped = _Method(method, handler.request_deserializer, self._entry, self._count)
        serialize = handler.response_serializer
        if _is_generated(handler.unary_unary or handler.unary_stream or handler.stream_stream):
            return None  # gRPC answers with UNIMPLEMENTED
        if inspect.iscoroutinefunction(handler.unary_unary):
            return grpc.unary_unary_rpc_method_handler(wrapped.unary(handler.unary_unary), None, serialize)
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(wrapped.answers(handler.unary_stream), None, serialize)
        if inspect.isasyncgenfunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(wrapped.stream(handler.stream_stream), None, serialize)
        raise NotImplementedError(
            f"{method}: only coroutines of unary methods and generators of streaming methods can be wrapped"
        )


class EdgedServer:
    """A gRPC server whose methods are wrapped once, when servicers are added to it.

    An interceptor of gRPC would wrap them for each call. They are added as generic handlers: for registered ones the
    server waits with a task for each method, and looks through all of them at every call.
    """

    def __init__(self, server: grpc.aio.Server, edge: Edge) -> None:
        self._server = server
        self._edge = edge

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Part of what `add_…Servicer_to_server` calls, which gives the same handlers below."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Adds the methods of a service. service: its full name."""
        wrapped = {name: self._edge.wrap(f"/{service}/{name}", handler) for name, handler in handlers.items()}
        offered = {name: handler for name, handler in wrapped.items() if handler is not None}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, offered)])


class _Method:
    """The wrapper of one method."""

    def __init__(self, method: str, decode: Callable[[bytes], Any] | None, entry: Entry, count: Count) -> None:
        self._method = method
        self._decode = decode
        self._entry = entry
        self._count = count

    def unary(self, behaviour: Callable[..., Any]) -> Callable[[bytes, CallInfo], Awaitable[Any]]:
        async def run(data: bytes, context: CallInfo) -> Any:
            call = PresentCall(self._method, remaining=context.time_remaining)
            try:
                self._begin(call, context)
                response = await behaviour(await self._charged(call, data), context)
            except BaseException as error:
                data = b""  # gRPC keeps this frame, see `_fail`
                await self._fail(call, error, context)
                raise
            self._count(call, grpc.StatusCode.OK, None)
            return response

        return run

    def answers(self, behaviour: Callable[..., Any]) -> Callable[[bytes, CallInfo], AsyncIterator[Any]]:
        async def begin(call: PresentCall, data: bytes, context: CallInfo, _: object) -> Any:
            return behaviour(await self._charged(call, data), context)

        return self._generator(begin)

    def stream(self, behaviour: Callable[..., Any]) -> Callable[[AsyncIterator[bytes], CallInfo], AsyncIterator[Any]]:
        async def begin(
            call: PresentCall, requests: AsyncIterator[bytes], context: CallInfo, admitted: Callable[[], None]
        ) -> Any:
            return behaviour(self._each(call, requests, admitted), context)

        return self._generator(begin)

    def _generator(self, begin: Callable[..., Awaitable[Any]]) -> Callable[[Any, CallInfo], AsyncIterator[Any]]:
        async def run(sent: Any, context: CallInfo) -> AsyncIterator[Any]:
            call = PresentCall(self._method, remaining=context.time_remaining)
            try:
                admitted = self._begin(call, context)
                async for response in await begin(call, sent, context, admitted):
                    yield response
            except BaseException as error:
                sent = None  # gRPC keeps this frame, see `_fail`
                await self._fail(call, error, context)
                raise
            self._count(call, grpc.StatusCode.OK, None)

        return run

    def _begin(self, call: PresentCall, context: CallInfo) -> Callable[[], None]:
        """Names the call and checks whether it may start. Returns what checks it once more, see `Entry.admit`."""
        enter(call)
        metadata = context.invocation_metadata() or ()
        try:
            call.request_id = sent_id(metadata) or ""
        finally:
            call.request_id = call.request_id or new_id()
            context.set_trailing_metadata(((KEY, call.request_id),))
        return self._entry.admit(call, dict(metadata), context)

    async def _each(
        self, call: PresentCall, requests: AsyncIterator[bytes], admitted: Callable[[], None]
    ) -> AsyncIterator[Any]:
        async for data in requests:
            admitted()
            request = await self._parse(data)
            await self._entry.pace(call, request)
            yield request

    async def _charged(self, call: PresentCall, data: bytes) -> Any:
        request = await self._parse(data)
        self._entry.charge(call, request)
        return request

    async def _parse(self, data: bytes) -> Any:
        """The request. Over HTTP it is read only now, so decoding it waits."""
        if self._decode is None:
            return data
        try:
            request = self._decode(data)
            return request if isinstance(request, Message) else await request
        except DecodeError as error:
            raise InvalidRequestError(_why_not_decoded(data, self._decode)) from error

    async def _fail(self, call: PresentCall, error: BaseException, context: CallInfo) -> None:
        """Ends the call with the status of the error. Returns only for errors that gRPC handles itself.

        gRPC's state of a call and the error that `abort` raises refer to each other. They keep the frames of the call,
        and so the request, until the garbage collector finds the cycle, which can be hundreds of calls later. So the
        error drops its frames here.
        """
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._count(call, code_of(error), error)
            return
        if isinstance(error, grpc.aio.AbortError) or not isinstance(error, Exception):
            return
        code = code_of(error)
        reference = ""
        if not isinstance(error, HmcError):
            reference = new_reference()
            log.error("unexpected error %s in %s, request %s", reference, call.method, call.request_id, exc_info=error)
        self._count(call, code, error)
        message = message_of(error, reference)
        trailers = ((KEY, call.request_id), *retry_trailers(error), *trailers_of(error, message))
        _forget_frames(error)
        await context.abort(code, message, trailers)


def _is_generated(behaviour: Callable[..., Any] | None) -> bool:
    """Whether a method is that of the generated base class, and so not implemented."""
    return str(getattr(behaviour, "__module__", "")).endswith("_pb2_grpc")


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        error = error.__context__


def _why_not_decoded(data: bytes, decode: Callable[[bytes], Any]) -> str:
    """Finds out why bytes could not be decoded, and which text is not UTF-8 if that is the reason.

    decode: `FromString` of the method's request message.
    """
    try:
        unknown: Any = UnknownFieldSet(Empty.FromString(data))  # Empty has no fields, so all fields are unknown ones
    except DecodeError:
        return "the request is not a message of this method; generate the client from the server's .proto or reflection"
    for field in decode(b"").DESCRIPTOR.fields:
        values = [f.data for f in unknown if f.field_number == field.number and isinstance(f.data, bytes)]
        for index, value in enumerate(values if field.type == field.TYPE_STRING else ()):
            try:
                value.decode()
            except UnicodeDecodeError as error:
                name = f"{field.name}[{index}]" if field.is_repeated else field.name
                where = f"byte 0x{value[error.start]:02x} at {error.start}"
                return f"{name} is not UTF-8: {where}; convert it to UTF-8"
    return "a field of the request is not UTF-8, or has another type than in the .proto; strings must be UTF-8"
