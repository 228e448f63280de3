"""Wraps every call: checks whether it may start, decodes its requests, and turns errors into statuses."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from hmc.artifact.errors import HmcError, InvalidRequestError
from hmc.serving.server.access.entry import CallInfo, Entry
from hmc.serving.wire.metadata import KEY, new_id, request_id, retry_trailers, sent_id
from hmc.serving.wire.status import code_of, message_of, new_reference, time_remaining, trailers_of

log = logging.getLogger(__name__)

UNCHECKED_SERVICES = ("/grpc.health.v1.Health/",)
"""Health checks are not wrapped: probes send no token, and must get an answer while the server starts or drains."""

if TYPE_CHECKING:  # this type is generic for the type checker only
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
else:
    Handler = grpc.RpcMethodHandler
Count = Callable[[str, grpc.StatusCode, BaseException | None], None]


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method except health checks.

    It decodes requests itself: gRPC would answer bytes that are not a message of the method with INTERNAL.
    """

    def __init__(self, entry: Entry, count: Count) -> None:
        """entry: raises if a call may not start. count: called with the method, the status and the error of each ended
        call."""
        self._entry, self._count = entry, count

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        return self.wrap(handler_call_details.method, await continuation(handler_call_details))

    def wrap(self, method: str, handler: Handler | None) -> Handler | None:
        """The handler with all that happens around it; None for a method that is not offered. Other doors than gRPC's
        call it with a `CallInfo` in place of gRPC's context. method: its full name."""
        if handler is None or method.startswith(UNCHECKED_SERVICES):
            return handler
        edge = _Edge(method, handler.request_deserializer, self._entry, self._count)
        serialize = handler.response_serializer
        if _is_generated(handler.unary_unary or handler.unary_stream or handler.stream_stream):
            return None  # gRPC answers with UNIMPLEMENTED
        if inspect.iscoroutinefunction(handler.unary_unary):
            return grpc.unary_unary_rpc_method_handler(edge.unary(handler.unary_unary), None, serialize)
        if inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(edge.answers(handler.unary_stream), None, serialize)
        if inspect.isasyncgenfunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(edge.stream(handler.stream_stream), None, serialize)
        raise NotImplementedError(
            f"{method}: the interceptor can wrap coroutines of unary methods and generators of streaming methods only"
        )


class _Edge:
    """The wrapper of one method."""

    def __init__(self, method: str, decode: Callable[[bytes], Any] | None, entry: Entry, count: Count) -> None:
        self._method, self._decode, self._entry, self._count = method, decode, entry, count

    def unary(self, behaviour: Callable[..., Any]) -> Callable[[bytes, CallInfo], Awaitable[Any]]:
        async def call(data: bytes, context: CallInfo) -> Any:
            try:
                self._begin(context)
                response = await behaviour(await self._charged(data), context)
            except BaseException as error:
                data = b""  # gRPC keeps this frame, see `_fail`
                await self._fail(error, context)
                raise
            self._count(self._method, grpc.StatusCode.OK, None)
            return response

        return call

    def answers(self, behaviour: Callable[..., Any]) -> Callable[[bytes, CallInfo], AsyncIterator[Any]]:
        async def begin(data: bytes, context: CallInfo, _: object) -> Any:
            return behaviour(await self._charged(data), context)

        return self._generator(begin)

    def stream(self, behaviour: Callable[..., Any]) -> Callable[[AsyncIterator[bytes], CallInfo], AsyncIterator[Any]]:
        async def begin(requests: AsyncIterator[bytes], context: CallInfo, admitted: Callable[[], None]) -> Any:
            return behaviour(self._each(requests, admitted), context)

        return self._generator(begin)

    def _generator(self, begin: Callable[..., Awaitable[Any]]) -> Callable[[Any, CallInfo], AsyncIterator[Any]]:
        async def call(sent: Any, context: CallInfo) -> AsyncIterator[Any]:
            try:
                admitted = self._begin(context)
                async for response in await begin(sent, context, admitted):
                    yield response
            except BaseException as error:
                sent = None  # gRPC keeps this frame, see `_fail`
                await self._fail(error, context)
                raise
            self._count(self._method, grpc.StatusCode.OK, None)

        return call

    def _begin(self, context: CallInfo) -> Callable[[], None]:
        """Names the call and checks whether it may start. Returns what checks it once more, see `Entry.admit`."""
        time_remaining.set(context.time_remaining)
        begun = self._entry.begin(self._method, new_id())
        request_id.set(begun.request_id)
        context.set_trailing_metadata(((KEY, begun.request_id),))
        sent = sent_id(context.invocation_metadata() or ())
        if sent is not None:
            begun.request_id = sent
            request_id.set(sent)
            context.set_trailing_metadata(((KEY, sent),))
        return self._entry.admit(begun, context)

    async def _each(self, requests: AsyncIterator[bytes], admitted: Callable[[], None]) -> AsyncIterator[Any]:
        async for data in requests:
            admitted()
            request = await self._parse(data)
            await self._entry.pace(request)
            yield request

    async def _charged(self, data: bytes) -> Any:
        request = await self._parse(data)
        self._entry.charge(request)
        return request

    async def _parse(self, data: bytes) -> Any:
        """The request. Over HTTP it is read only now, so decoding it waits."""
        if self._decode is None:
            return data
        try:
            made = self._decode(data)
            return await made if inspect.isawaitable(made) else made
        except DecodeError as error:
            raise InvalidRequestError(_why_not_decoded(data, self._decode)) from error

    async def _fail(self, error: BaseException, context: CallInfo) -> None:
        """Ends the call with the status of the error. Returns only for errors that gRPC handles itself.

        gRPC's state of a call and the error that `abort` raises refer to each other. They keep the frames of the call,
        and so the request, until the garbage collector finds the cycle, which can be hundreds of calls later. So the
        error drops its frames here.
        """
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._count(self._method, code_of(error), error)
            return
        if isinstance(error, grpc.aio.AbortError) or not isinstance(error, Exception):
            return
        code, reference = code_of(error), ""
        if not isinstance(error, HmcError):
            reference = new_reference()
            log.error(
                "unexpected error %s in %s, request %s", reference, self._method, request_id.get(), exc_info=error
            )
        self._count(self._method, code, error)
        message = message_of(error, reference)
        trailers = ((KEY, request_id.get()), *retry_trailers(error), *trailers_of(error, message))
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
