"""Server reflection under both of its names: clients ask for v1, older ones for v1alpha; the messages are the same."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def add_reflection(services: Sequence[str], server: grpc.aio.Server) -> None:
    """Lets clients find `services`, and reflection itself."""
    servicer = reflection.aio.ReflectionServicer((*services, *NAMES))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods) for name in NAMES])
