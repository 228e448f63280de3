"""Metrics and health over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hmc.serving.http.context import HttpContext
from hmc.serving.http.methods import Methods

METRICS = "/hmc.http.Metrics/Get"
"""The name that the metrics have for checks of tokens, in place of an RPC's."""


def observing_routes(methods: Methods, registry: CollectorRegistry, ready: Callable[[], str | None]) -> list[Route]:
    """ready: returns why the server does not serve, or None if it does."""

    async def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        content = await methods.plain(METRICS, lambda: encode(registry), HttpContext.of(request))
        return Response(content, headers={"Content-Type": kind})

    async def live(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(_request: Request) -> Response:
        reason = ready()
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable", "error": reason}, 503)

    return [
        Route("/metrics", metrics),
        Route("/health", readiness),
        Route("/health/live", live),
        Route("/health/ready", readiness),
    ]
