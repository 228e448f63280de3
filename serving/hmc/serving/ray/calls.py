"""Calls that Ray hands to a replica, made through the same interceptor as calls of the plain server.

Ray drops the trailers of a method that raises. So a call never raises: its status is set, and it returns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from hmc.serving.http.context import HttpContext
from hmc.serving.http.methods import Methods, path_of

RayContext = Any
"""`ray.serve.grpc_util.RayServegRPCContext`"""


async def unary(methods: Methods, method: MethodDescriptor, data: bytes, ray: RayContext) -> Message:
    """The answer of a call with one; an empty message if it failed, with the status in the context."""
    context = _context(ray)
    answer: Message = Empty()
    try:
        handler = await methods.handler(path_of(method), context)
        answer = await handler.unary_unary(data, context)
    except grpc.aio.AbortError:
        pass
    _finish(context, ray)
    return answer


async def answers(methods: Methods, method: MethodDescriptor, sent: Any, ray: RayContext) -> AsyncIterator[Message]:
    """The answers of a call with many. sent: the request as bytes, or an iterator of requests."""
    context = _context(ray)
    try:
        handler = await methods.handler(path_of(method), context)
        behaviour = handler.stream_stream if method.client_streaming else handler.unary_stream
        async for answer in behaviour(sent, context):
            yield answer
    except grpc.aio.AbortError:
        pass
    _finish(context, ray)


def _context(ray: RayContext) -> HttpContext:
    """The context of a call, with the peer and the metadata that Ray knows. Ray does not say the deadline: it cancels
    the call when it passes."""
    return HttpContext(ray.peer(), tuple(ray.invocation_metadata()))


def _finish(context: HttpContext, ray: RayContext) -> None:
    code = context.code()
    if code is not None and code is not grpc.StatusCode.OK:
        ray.set_code(code)
        ray.set_details(context.details())
    ray.set_trailing_metadata(list(context.trailing_metadata()))
