"""Tells Ray's proxies which gRPC methods there are. Requests stay bytes, which replicas decode as the server does."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from hmc.v1 import translation_pb2 as pb

TRANSLATION: Any = pb.DESCRIPTOR.services_by_name["TranslationService"]
HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
FUNCTIONS = (f"{__name__}.add_translation_service", f"{__name__}.add_health_service")
"""For `grpc_servicer_functions` of Ray's gRPC options."""


def add_translation_service(_servicer: object, server: Any) -> None:
    """Adds the methods of `hmc.v1.TranslationService` to a server of Ray, which sends their calls to replicas."""
    _add(TRANSLATION, [method.name for method in TRANSLATION.methods], server)


def add_health_service(_servicer: object, server: Any) -> None:
    """Adds `Check` of `grpc.health.v1.Health`. A watch would bind its client to one replica."""
    _add(HEALTH, ["Check"], server)


def _add(service: Any, names: list[str], server: Any) -> None:
    """service: its descriptor."""
    handlers = {name: _handler(service, name) for name in names}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    server.add_registered_method_handlers(service.full_name, handlers)


def _handler(service: Any, name: str) -> Any:
    """A handler of the right kind. Ray replaces what it does."""
    method = service.methods_by_name[name]
    if method.client_streaming:
        return grpc.stream_stream_rpc_method_handler(_replaced, None, None)
    kind = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    return kind(_replaced, None, None)


def _replaced(*_: Any) -> Any:
    raise NotImplementedError("Ray replaces this handler")
