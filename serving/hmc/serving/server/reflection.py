"""Server reflection under both of its names: clients ask for v1, older ones for v1alpha; the messages are the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from hmc.serving.server.stream import until

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def add_reflection(services: Sequence[str], server: grpc.aio.Server, closing: asyncio.Event) -> None:
    """Lets clients find `services`, and reflection itself. Its streams end when `closing` is set."""
    servicer = reflection.aio.ReflectionServicer((*services, *NAMES))

    async def answer(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        responses: Any = servicer.ServerReflectionInfo(until(closing, requests), context)
        async for response in responses:
            yield response

    handler = grpc.stream_stream_rpc_method_handler(
        answer,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods) for name in NAMES])
