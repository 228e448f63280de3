"""Health by the standard service, with the names of models and levels that it knows; and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from hmc.serving.levels.models import Models
from hmc.serving.server.edge import EdgedServer
from hmc.serving.server.streams import until

REFLECTION_NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Newer clients ask for v1, older ones for v1alpha. Both have the same messages."""
FAILURE_CHECK_S = 1.0
"""Seconds between two checks of what serves."""
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
FINAL_STATUS_S = 0.1
"""Seconds in which a watcher of the health can receive the last status, NOT_SERVING, before its stream ends."""


class Health(aio.HealthServicer):
    """The library's health service, whose watches end when the server drains."""

    def __init__(self, closing: asyncio.Event) -> None:
        """closing: set when the server drains."""
        super().__init__()
        self._closing = closing
        self._health: Callable[[], Mapping[str, bool]] | None = None
        self._reported: dict[str, int] = {}
        self._refreshing = asyncio.Lock()

    async def set_all(self, services: Sequence[str], status: int) -> None:
        """Sets the status of several services."""
        for service in services:
            self._reported[service] = status
            await self.set(service, status)

    def follow(self, health: Callable[[], Mapping[str, bool]]) -> None:
        """From the next `refresh` on, services are reported as SERVING while they serve, and as NOT_SERVING otherwise.

        health: returns service name → whether it serves. Names that it returns no more become unknown.
        """
        self._health = health

    async def refresh(self) -> None:
        """Reports what serves now. Checks do so themselves; watchers learn of a change by it."""
        async with self._refreshing:
            if self._health is None or self._closing.is_set():
                return
            new: dict[str, int] = dict.fromkeys(self._reported, UNKNOWN)
            new |= {service: SERVING if serves else NOT_SERVING for service, serves in self._health().items()}
            for service, status in new.items():
                if self._reported.get(service) != status:
                    await self.set_all((service,), status)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await self.refresh()
        if self._reported.get(request.service) == UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return await super().Check(request, context)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        watching = asyncio.create_task(super().Watch(request, context))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({watching, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                await asyncio.wait({watching}, timeout=FINAL_STATUS_S)
            if watching.done():
                await watching
        finally:
            for task in (watching, closing):
                task.cancel()
            await asyncio.gather(watching, closing, return_exceptions=True)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")


def add_reflection(services: Sequence[str], server: EdgedServer, closing: asyncio.Event) -> None:
    """Lets clients look up `services`, and reflection itself. closing: set when the server drains."""
    servicer = reflection.aio.ReflectionServicer((*services, *REFLECTION_NAMES))

    async def answer(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        responses: Any = servicer.ServerReflectionInfo(until(closing, requests), context)
        async for response in responses:
            yield response

    handler = grpc.stream_stream_rpc_method_handler(
        answer,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in REFLECTION_NAMES:
        server.add_registered_method_handlers(name, {"ServerReflectionInfo": handler})


TRANSLATION = "hmc.v1.TranslationService"
ADMIN = "hmc.v1.AdminService"


def model_health(models: Models) -> dict[str, bool]:
    """Service name → whether it serves.

    A level (`hmc.v1.TranslationService/MODEL/LEVEL`) serves if it is loaded and has not failed, a model
    (`hmc.v1.TranslationService/MODEL`) if its default level does. The server (the empty name and
    `hmc.v1.TranslationService`) serves if each model does that was loaded at the start. `hmc.v1.AdminService` serves
    even then: a reload may be what repairs a level.
    """
    health = dict[str, bool]()
    server = True
    for host in models.hosts:
        default, levels = host.serving()
        health[f"{TRANSLATION}/{host.name}"] = levels[default]
        health |= {f"{TRANSLATION}/{host.name}/{level}": serves for level, serves in levels.items()}
        server = server and (levels[default] or not host.eager)
    return {"": server, TRANSLATION: server, ADMIN: True, **health}
