"""The server: its parts put together, started, drained and stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from hmc.artifact.bundle import Manifest
from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.host import ModelHost
from hmc.serving.loaded import TranslatorFactory
from hmc.serving.memory import return_large_blocks_at_once
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.health import Health
from hmc.serving.server.interceptors import Context, EdgeInterceptor, require_token
from hmc.serving.server.metrics import Metrics
from hmc.serving.server.reflection import add_reflection
from hmc.serving.server.servicers import AdminServicer, TranslationServicer
from hmc.serving.server.settings import MAX_MESSAGE_BYTES, ServerSettings, check_port, join_address
from hmc.serving.translator import Translator
from hmc.v1 import translation_pb2_grpc as rpc

log = logging.getLogger(__name__)

HEALTH = "grpc.health.v1.Health"
SERVICES = ("hmc.v1.TranslationService", "hmc.v1.AdminService")
AT_ONCE_S = 1.0
"""Seconds after a second signal in which what is under way is given up; then it is left as it is."""
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def translator_factory(settings: ServerSettings) -> TranslatorFactory:
    """Loads real translators as the settings say."""

    def load(bundle: Path, manifest: Manifest, level: str) -> Translator:
        return Translator(
            bundle,
            level,
            device=settings.device,
            threads=settings.threads,
            queue_size=settings.queue_size,
            max_rows=settings.max_rows,
            max_tokens=settings.max_tokens,
            manifest=manifest,
            cache=settings.cache,
            workers=settings.workers,
        )

    return load


def model_host(bundle: Path | str, settings: ServerSettings, factory: TranslatorFactory | None = None) -> ModelHost:
    """A host for `bundle`, not started. Raises InvalidArtifactError and LevelNotFoundError."""
    return ModelHost(
        bundle,
        factory or translator_factory(settings),
        levels=settings.levels,
        default_level=settings.default_level,
        device=settings.device,
        lazy=settings.lazy,
        auto=settings.auto,
    )


class Server:
    """A gRPC server for one host. Make and use it on one event loop; `start` it once."""

    def __init__(self, host: ModelHost, settings: ServerSettings) -> None:
        self.host, self.settings = host, settings
        self._draining = asyncio.Event()
        self._check_token = require_token(settings.token) if settings.token else None
        self._metrics = Metrics(lambda: {x.level.name: x.pending for x in host.status().levels if x.loaded})
        self._metrics_server: WSGIServer | None = None
        self._health = Health(self._draining)
        self._grpc = grpc.aio.server(
            interceptors=[EdgeInterceptor(self._admit, self._metrics.call)],
            options=[
                ("grpc.so_reuseport", 0),  # otherwise a second server shares a busy port and takes some of its calls
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ],
        )
        handlers = Handlers(host, settings, self._metrics)
        translation = TranslationServicer(handlers, settings.stream_window, self._draining)
        rpc.add_TranslationServiceServicer_to_server(translation, self._grpc)
        rpc.add_AdminServiceServicer_to_server(AdminServicer(handlers), self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        add_reflection((*SERVICES, HEALTH), self._grpc, self._draining)
        self._started = False
        self.port = 0
        self.metrics_port: int | None = None

    @property
    def address(self) -> str:
        """`host:port` that clients on this machine connect to."""
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        return join_address(local, self.port)

    async def start(self) -> None:
        """Listens, loads the levels, then reports SERVING.

        Raises PortInUseError, InvalidRequestError (address, TLS files), InvalidArtifactError, DeviceUnavailableError;
        nothing is left running then. Raises UnavailableError if `stop` is called meanwhile.
        """
        self.port = self._bind()
        try:
            if self.settings.metrics_port is not None:
                self._metrics_server, self.metrics_port = self._metrics.serve(
                    self.settings.host, self.settings.metrics_port
                )
            for service in ("", *SERVICES):
                await self._health.set(service, NOT_SERVING)
            await self._grpc.start()
            await asyncio.to_thread(self.host.start)
        except BaseException:
            if not self._draining.is_set():
                await self.stop(0.0)
            raise
        self._started = True
        if not self._draining.is_set():
            for service in ("", *SERVICES):
                await self._health.set(service, SERVING)

    def _bind(self) -> int:
        host, port = self.settings.host, self.settings.port
        check_port(host, port, "--port")
        pair = self.settings.tls_pair()
        if not self.settings.is_local and self._check_token is None:
            log.warning("anyone who reaches %s may translate and change what is loaded: set a token", host)
        try:
            if pair is None:
                return self._grpc.add_insecure_port(join_address(host, port))
            return self._grpc.add_secure_port(join_address(host, port), grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            check_port(host, port, "--port")
            if pair is None:
                raise InvalidRequestError(f"cannot listen on {join_address(host, port)}: {error}") from error
            files = f"{self.settings.tls_cert} and {self.settings.tls_key}"
            raise InvalidRequestError(
                f"cannot serve TLS with {files}: {error}; give a PEM certificate chain and its key, not encrypted"
            ) from error

    def _admit(self, context: Context) -> None:
        if self._check_token is not None:
            self._check_token(context)
        if self._draining.is_set():
            raise UnavailableError("the server is shutting down; try again at another one")

    async def wait(self) -> None:
        """Returns when the server has stopped."""
        await self._grpc.wait_for_termination()

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Reports NOT_SERVING, takes no new calls, lets running ones finish for `drain_seconds` (None: as set), then
        cancels them and frees the levels. A start goes no further than the level that it is loading."""
        self._draining.set()
        if not self._started:
            self.host.stop_loading()
        await self._health.enter_graceful_shutdown()  # watchers hear of it before they end
        await self._grpc.stop(self.settings.drain_seconds if drain_seconds is None else drain_seconds)
        await asyncio.to_thread(self.host.close, False)
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
            self._metrics_server.server_close()
            self._metrics_server = None


async def serve(server: Server, ready: Callable[[Server], None]) -> bool:
    """Runs until SIGTERM or SIGINT, then drains; a second signal stops at once. Calls `ready` when it is serving.

    Returns False if something could not be stopped at once, as a level that is being loaded: the thread that does it
    ends only with the process. Raises as `Server.start`.
    """
    return_large_blocks_at_once()
    loop = asyncio.get_running_loop()
    signalled = [asyncio.Event(), asyncio.Event()]

    def on_signal() -> None:
        (signalled[1] if signalled[0].is_set() else signalled[0]).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.create_task(server.start())
    first, second = (asyncio.create_task(event.wait()) for event in signalled)
    try:
        await asyncio.wait({starting, first}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            try:
                ready(server)
            except BaseException:
                await server.stop(0.0)
                raise
            await first
            log.info("draining: running calls have %g s to finish", server.settings.drain_seconds)
        else:
            log.info("stopping: no further level is loaded; a second signal does not wait for the present one")
        return await _stop(server, starting, second)
    finally:
        first.cancel()
        second.cancel()


async def _stop(server: Server, starting: asyncio.Task[None], second: asyncio.Task[Any]) -> bool:
    """Drains, or stops at once when `second` is done; whether everything has ended."""
    stopping = asyncio.create_task(server.stop())
    ended = asyncio.create_task(asyncio.wait({starting, stopping}))
    await asyncio.wait({ended, second}, return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        at_once = asyncio.create_task(server.stop(0.0))
        await asyncio.wait({ended, at_once}, timeout=AT_ONCE_S)
    if not ended.done():
        return False
    await stopping
    if (error := starting.exception()) is not None and not isinstance(error, UnavailableError):
        log.error("the start had failed: %s", error)
    return True
