"""The gRPC server: made of its parts, started, drained and stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from prometheus_client import CollectorRegistry

from hmc.artifact.bundle.manifest import Manifest
from hmc.artifact.errors import UnavailableError
from hmc.engine.opening import open_engine
from hmc.serving.http.app import application
from hmc.serving.http.listener import Listener
from hmc.serving.http.methods import Methods
from hmc.serving.levels.cache import SHUTTING_DOWN
from hmc.serving.levels.models import Models
from hmc.serving.levels.slots import TranslatorFactory
from hmc.serving.requests.call import PresentCall
from hmc.serving.server.access.binding import grpc_options, listen, listen_for_admin, warnings_of
from hmc.serving.server.access.certificates import Certificates
from hmc.serving.server.access.descriptors import connections_of
from hmc.serving.server.access.entry import Entry
from hmc.serving.server.access.gate import AccessGate
from hmc.serving.server.access.listening import check_port, join_address, local_host
from hmc.serving.server.edge import Edge, EdgedServer
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.health import (
    ADMIN,
    FAILURE_CHECK_S,
    NOT_SERVING,
    TRANSLATION,
    Health,
    add_reflection,
    model_health,
)
from hmc.serving.server.observing.calls import CallLog
from hmc.serving.server.observing.metrics import Metrics
from hmc.serving.server.observing.metrics_port import MetricsServer, serve_metrics
from hmc.serving.server.observing.traces import Traces, traces_to
from hmc.serving.server.processes.group import Group
from hmc.serving.server.processes.membership import Membership, allowances_of
from hmc.serving.server.servicers import AdminServicer, TranslationServicer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.upkeep import BundleWatch, Upkeep
from hmc.serving.translator import OpensEngine, Translator
from hmc.serving.wire.metadata import ELSEWHERE_S
from hmc.v1 import translation_pb2_grpc as rpc

log = logging.getLogger(__name__)

HEALTH = "grpc.health.v1.Health"
SERVICES = (TRANSLATION, ADMIN)
FILES_CHECK_S = 1.0
"""Seconds between two looks at the tokens file and the TLS files."""
IDLE_ROUNDS = 4
LONGEST_IDLE_S = 60.0
"""Looks for idle levels in the time after which they are unloaded, so that this is at most a quarter of the time late;
and most seconds between two looks."""


def translator_factory(settings: ServerSettings, opens: OpensEngine = open_engine) -> TranslatorFactory:
    """Makes a factory that loads real translators with the given settings. opens: what opens their levels."""

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
            gpu_memory=settings.gpu_memory,
            gpu_attention=settings.gpu_attention,
            executor=settings.executor,
            opens=opens,
        )

    return load


def open_models(
    bundles: Mapping[str, Path], settings: ServerSettings, factory: TranslatorFactory | None = None
) -> Models:
    """Makes the hosts of bundles; none is started. factory: loads the translators of levels; None loads real ones.

    bundles, and the errors raised: see `Models.open`.
    """
    return Models.open(bundles, factory or translator_factory(settings), settings.of_hosts())


class Server:
    """A gRPC server of models. Make it and use it on one event loop; start it once."""

    def __init__(
        self,
        models: Models,
        settings: ServerSettings,
        traces: Traces | None = None,
        group: Group | None = None,
        others_bytes: Callable[[], int] = int,
    ) -> None:
        """traces: where spans go; None: as the settings say. group: the fronts of which this server is one; None: it is
        the only one. others_bytes: memory of the processes that work for this one. Raises FailedPreconditionError if
        the settings ask for traces and the OpenTelemetry SDK is not installed, and as `connections_of`."""
        settings = settings.model_copy(update={"max_connections": connections_of(settings)})
        self.models = models
        self.settings = settings
        self._group = group
        self._draining = asyncio.Event()
        self._traces = traces or (traces_to(settings.trace_to) if settings.trace_to else None)
        self._calls = CallLog(calls=settings.log_calls, texts=settings.log_texts, traces=self._traces)
        self._metrics = Metrics(self.models.statuses, lambda: self._why_not_ready() is None, self._draining.is_set)
        rejected = self._metrics.upkeep.labels
        self._gate = AccessGate(settings.token, settings.tokens, allowances_of(group), rejected("tokens").inc)
        self._certificates: Certificates | None = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            self._certificates = Certificates(
                settings.tls_cert, settings.tls_key, settings.tls_client_ca, rejected("certificates").inc
            )
        self._metrics.expect(self.models.statuses())
        self._metrics_server: MetricsServer | None = None
        self._health = Health(self._draining)
        self._handlers = handlers = Handlers(self.models, settings, self._metrics, others_bytes)
        translation = TranslationServicer(handlers, settings.stream_window, self._draining)
        self._membership = None if group is None else Membership(group, handlers, self.registry, self._check_running)
        admin = AdminServicer(handlers) if self._membership is None else self._membership.servicer
        shows = settings.tls_client_ca is not None
        entry = Entry(self._gate, self._check_running, self._calls, certificates=shows)
        self._edge = Edge(entry, self._ended)
        self._grpc = self._new_server(SERVICES if settings.admin_address is None else (TRANSLATION,))
        self._servers = [self._grpc]
        self._methods = Methods(self._edge.wrap)
        """What the HTTP listener offers. Servicers are added to it as to a gRPC server."""
        self._listener: Listener | None = None
        """Of HTTP. None while it does not listen."""
        for door in (EdgedServer(self._grpc, self._edge), self._methods):
            rpc.add_TranslationServiceServicer_to_server(translation, door)
            if settings.admin_address is None:
                rpc.add_AdminServiceServicer_to_server(admin, door)
        if settings.admin_address is not None and self._leads:
            self._servers.append(self._new_server((ADMIN,)))
            rpc.add_AdminServiceServicer_to_server(admin, EdgedServer(self._servers[-1], self._edge))
        self._upkeep = Upkeep(self._draining, self._metrics.upkeep)
        self._started = False
        self.port = 0
        self.admin_address = ""
        """Where AdminService is, as clients on this machine write it. Set by `start`."""
        self.metrics_port: int | None = None

    def _new_server(self, services: tuple[str, ...]) -> grpc.aio.Server:
        """A gRPC server with the limits of the settings, health and reflection. services: those that it will have."""
        server = grpc.aio.server(options=grpc_options(self.settings, shared=self._group is not None))
        edged: Any = EdgedServer(server, self._edge)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, edged)
        add_reflection((*services, HEALTH), edged, self._draining)
        return server

    @property
    def registry(self) -> CollectorRegistry:
        """The metrics of this process."""
        return self._metrics.registry

    @property
    def _shown_registry(self) -> CollectorRegistry:
        """The metrics that it shows: those of all processes."""
        return self.registry if self._membership is None else self._membership.registry

    @property
    def _leads(self) -> bool:
        """Whether it holds the addresses that only one process can."""
        return self._group is None or self._group.leads

    @property
    def http_address(self) -> str | None:
        """URL of the HTTP listener for clients on this machine; None without one."""
        if self._listener is None:
            return None
        scheme = "http" if self._certificates is None else "https"
        return f"{scheme}://{join_address(local_host(self.settings.host), self._listener.port)}"

    @property
    def address(self) -> str:
        """`host:port` for clients on this machine."""
        return join_address(local_host(self.settings.host), self.port)

    @property
    def draining(self) -> bool:
        """Whether `stop` has been called."""
        return self._draining.is_set()

    async def start(self) -> None:
        """Listens, loads the levels, and then reports its health as SERVING.

        Raises PortInUseError, InvalidRequestError (address or TLS files), InvalidArtifactError and
        DeviceUnavailableError; the server is then stopped. Raises UnavailableError if `stop` is called meanwhile.
        """
        try:
            if self._membership is not None:  # connections that the kernel gave it before would have to wait
                await asyncio.to_thread(self.models.start)
                self._check_running()
                await self._membership.begin()
                self._check_running()
            self._bind()
            self._follow_files()
            if self.settings.metrics_port is not None and self._leads:
                self._metrics_server, self.metrics_port = serve_metrics(
                    self._shown_registry, self.settings.host, self.settings.metrics_port, self._gate
                )
            await self._health.set_all(tuple(model_health(self.models)), NOT_SERVING)
            for server in self._servers:
                await server.start()
            if self.settings.http_port is not None:
                await self._start_http(self.settings.http_port)
            if self._membership is None:
                await asyncio.to_thread(self.models.start)
        except BaseException:
            if not self.draining:
                await self.stop(0.0)
            raise
        self._started = True
        if not self.draining:
            self._health.follow(lambda: model_health(self.models))
            await self._health.refresh()
            self._follow_models()

    async def _start_http(self, port: int) -> None:
        settings = self.settings
        shared = self._group is not None
        if not shared:
            check_port(settings.host, port, "http_port")
        app = application(self._methods, self._shown_registry, self._why_not_ready, not self._gate.is_open)
        pair = None if self._certificates is None else self._certificates.pair
        self._listener = Listener(
            app, settings.host, port, pair, max_connections=settings.max_connections, shared=shared
        )
        await self._listener.start()

    def _follow_files(self) -> None:
        if self.settings.tokens is not None:
            self._upkeep.repeat("tokens", partial(asyncio.to_thread, self._gate.refresh), FILES_CHECK_S)
        if self._certificates is not None:
            self._upkeep.repeat("certificates", partial(asyncio.to_thread, self._refresh_certificates), FILES_CHECK_S)

    def _follow_models(self) -> None:
        self._upkeep.repeat("health", self._health.refresh, FAILURE_CHECK_S)
        if self.settings.watch is not None:
            for host in self.models.hosts:
                own = partial(self._handlers.reload, None) if self._membership is None else self._membership.reload
                look = BundleWatch(host, partial(own, host.name)).look
                self._upkeep.repeat(f"bundle {host.name}", look, self.settings.watch)
        if (unused_s := self.settings.idle_unload) is not None:
            pause = min(unused_s / IDLE_ROUNDS, LONGEST_IDLE_S)
            self._upkeep.repeat("idle levels", partial(self._handlers.unload_idle, unused_s), pause)

    def _bind(self) -> None:
        settings = self.settings
        for warning in warnings_of(settings):
            log.warning("%s", warning)
        shared = self._group is not None
        self.port = listen(self._grpc, settings.host, settings.port, "port", self._certificates, shared=shared)
        self.admin_address = self.address
        if settings.admin_address is not None and self._leads:
            self.admin_address = listen_for_admin(self._servers[-1], settings, self._certificates)

    def _ended(self, call: PresentCall, code: grpc.StatusCode, error: BaseException | None) -> None:
        self._metrics.call(call, code, error)
        self._calls.end(call, code)

    def _why_not_ready(self) -> str | None:
        """Why the server does not serve; None if it does."""
        if self.draining:
            return SHUTTING_DOWN
        if not self._started:
            return "the levels are being loaded"
        return next((host.failure for host in self.models.hosts if host.eager and host.failure), None)

    def _check_running(self) -> None:
        if self._draining.is_set():
            raise UnavailableError(SHUTTING_DOWN, ELSEWHERE_S)

    def refresh(self) -> None:
        """Reads the tokens file and the TLS files again if they have changed. May be called from any thread.

        The server does this by itself every second.
        """
        self._gate.refresh()
        self._refresh_certificates()

    def _refresh_certificates(self) -> None:
        if self._certificates is not None:
            self._certificates.refresh()
            if self._listener is not None:
                self._listener.use(self._certificates.pair)

    async def wait(self) -> None:
        """Returns when the server has stopped."""
        await self._grpc.wait_for_termination()

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Reports NOT_SERVING, refuses new calls, lets running calls finish, and frees the levels.

        Calls that still run after `drain_seconds` (None: as in the settings) are cancelled. If the server is starting,
        the level that is being loaded is the last one.
        """
        self._draining.set()
        if not self._started:
            self.models.stop_loading()
        grace = self.settings.drain_seconds if drain_seconds is None else drain_seconds
        async with AsyncExitStack() as steps:  # from the last line to the first, each of them even if another one fails
            steps.callback(self._stop_metrics)
            if self._traces is not None:
                steps.push_async_callback(asyncio.to_thread, self._traces.close)
            steps.push_async_callback(asyncio.to_thread, self.models.close, False)
            steps.push_async_callback(self._upkeep.end)
            steps.push_async_callback(self._stop_doors, grace)
            steps.push_async_callback(self._health.enter_graceful_shutdown)  # before the streams of watchers end
            if self._membership is not None:
                steps.push_async_callback(self._membership.end)

    async def _stop_doors(self, grace: float) -> None:
        stopping: list[Awaitable[object]] = [server.stop(grace) for server in self._servers]
        if self._listener is not None:
            stopping.append(self._listener.stop(grace))
        ended = await asyncio.gather(*stopping, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    def _stop_metrics(self) -> None:
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
            self._metrics_server.server_close()
            self._metrics_server = None
