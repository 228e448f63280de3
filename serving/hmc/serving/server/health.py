"""Health of the service, as grpc.health.v1 has it; who watches it does not hold up a server that stops."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from hmc.serving.server.interceptors import Context

LAST_WORD_S = 0.1
"""Time in which a watcher hears that nothing is served any more."""


class Health(aio.HealthServicer):
    """As the library's, but watches end when the server drains: they carry no work, and have no end of their own."""

    def __init__(self, closing: asyncio.Event) -> None:
        """closing: set when the server drains."""
        super().__init__()
        self._closing = closing

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> Any:
        watching = asyncio.create_task(super().Watch(request, context))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({watching, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                await asyncio.wait({watching}, timeout=LAST_WORD_S)
            if watching.done():
                await watching
        finally:
            for task in (watching, closing):
                task.cancel()
            await asyncio.gather(watching, closing, return_exceptions=True)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
