"""The HTTP application: all routes, metrics and health among them, with headers that keep browsers safe, and errors as
JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hmc.artifact.distribution import VERSION
from hmc.serving.http.call import HttpError, PlainCall
from hmc.serving.http.libretranslate import libretranslate_routes
from hmc.serving.http.methods import Methods
from hmc.serving.http.twins import twin_routes, twins
from hmc.serving.wire.metadata import ALLOWED, KEY, new_id
from hmc.serving.wire.status import message_of, new_reference

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
OPENAPI = Path(__file__).with_name("openapi.json")
"""The document of a server with all RPCs. `make docs` writes it."""
METRICS = "/hmc.http.Metrics/Get"
"""The name that the metrics have for checks of tokens, in place of an RPC's."""
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
CODES = {404: grpc.StatusCode.NOT_FOUND, 405: grpc.StatusCode.UNIMPLEMENTED}


def application(
    methods: Methods, registry: CollectorRegistry, ready: Callable[[], str | None], needs_token: bool
) -> Starlette:
    """Makes the application.

    registry: of the metrics. ready: returns why the server does not serve, or None if it does. needs_token: whether
    calls need a token.
    """
    document = openapi_document(methods, needs_token)

    async def openapi(_request: Request) -> Response:
        return JSONResponse(document)

    async def playground(_request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    async def docs(_request: Request) -> Response:
        return FileResponse(STATIC / "docs.html", headers={"Cache-Control": "no-cache"})

    routes: list[BaseRoute] = [
        Route("/", playground),
        Route("/docs", docs),
        Route("/openapi.json", openapi),
        Mount("/static", _Static(directory=STATIC)),
        *twin_routes(methods),
        *observing_routes(methods, registry, ready),
        *libretranslate_routes(methods, needs_token),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Headers)],
        exception_handlers={HttpError: _failed, HTTPException: _not_found, Exception: _bug},
    )
    app.router.redirect_slashes = False  # behind a proxy with TLS it would lead to http
    return app


def openapi_document(methods: Methods, needs_token: bool) -> dict[str, Any]:
    """The OpenAPI document of a server with these methods. needs_token: whether calls need a token."""
    document: dict[str, Any] = json.loads(OPENAPI.read_text(encoding="utf-8"))
    document["info"]["version"] = VERSION
    paths = document["paths"]
    for twin in twins():
        if not methods.has(twin.method.containing_service):
            paths.pop(twin.path, None)
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in paths.items():
            if not path.startswith(("/health", "/frontend")):
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
    return document


def observing_routes(methods: Methods, registry: CollectorRegistry, ready: Callable[[], str | None]) -> list[Route]:
    """Metrics and health. ready: returns why the server does not serve, or None if it does."""

    async def metrics(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        content = await methods.plain(METRICS, lambda: encode(registry), PlainCall.from_request(request))
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


class _Static(StaticFiles):
    """The files of the playground; browsers ask each time whether they have changed."""

    def file_response(self, *args: object, **kwargs: object) -> Response:
        response = super().file_response(*args, **kwargs)  # type: ignore[arg-type]
        response.headers["Cache-Control"] = "no-cache"
        return response


class _Headers:
    """Gives every request an id, and every answer this id and the security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(KEY, "")
        if not ALLOWED.fullmatch(given):
            given = new_id()
            rest = [(name, value) for name, value in scope["headers"] if name != KEY.encode()]
            scope["headers"] = [*rest, (KEY.encode(), given.encode())]

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers[KEY] = given
            await send(message)

        with suppress(asyncio.CancelledError):  # the client has left, or the drain is over: nobody reads an answer
            await self._app(scope, receive, sending)


def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error.response()


def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, grpc.StatusCode.INVALID_ARGUMENT)
    what = {404: "there is nothing at", 405: f"{request.method} is not offered at"}
    message = f"{what.get(error.status_code, error.detail)} {request.url.path}; see /docs"
    headers = dict(error.headers or {})
    return HttpError(code, message, status=error.status_code, headers=headers).response()


def _bug(request: Request, error: Exception) -> Response:
    reference = new_reference()
    log.error("unexpected error %s in %s", reference, request.url.path, exc_info=error)
    return HttpError(grpc.StatusCode.INTERNAL, message_of(error, reference)).response()
