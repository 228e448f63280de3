"""The gRPC server: made of its parts, started, drained and stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from wsgiref.simple_server import WSGIServer

import grpc
from grpc_health.v1 import health_pb2_grpc

from hmc.artifact.bundle.manifest import Manifest
from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving.levels.host import ModelHost
from hmc.serving.levels.loading import SHUTTING_DOWN
from hmc.serving.levels.models import Models
from hmc.serving.levels.slots import TranslatorFactory
from hmc.serving.server.handlers import Handlers
from hmc.serving.server.interceptors import Context, EdgeInterceptor, require_token
from hmc.serving.server.janitor import clean
from hmc.serving.server.listening import check_port, join_address
from hmc.serving.server.metrics import Metrics
from hmc.serving.server.model_health import ADMIN, TRANSLATION, model_health
from hmc.serving.server.servicers import AdminServicer, TranslationServicer
from hmc.serving.server.settings import ServerSettings
from hmc.serving.server.standard_services import NOT_SERVING, SERVING, Health, add_reflection
from hmc.serving.translator import Translator
from hmc.serving.wire.limits import MAX_MESSAGE_BYTES
from hmc.v1 import translation_pb2_grpc as rpc

log = logging.getLogger(__name__)

HEALTH = "grpc.health.v1.Health"
SERVICES = (TRANSLATION, ADMIN)


def translator_factory(settings: ServerSettings) -> TranslatorFactory:
    """Makes a factory that loads real translators with the given settings."""

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
        )

    return load


def open_models(
    bundles: Mapping[str, Path], settings: ServerSettings, factory: TranslatorFactory | None = None
) -> Models:
    """Makes the hosts of bundles; none is started. factory: loads the translators of levels; None loads real ones.

    bundles, and the errors raised: see `Models.open`.
    """
    return Models.open(bundles, factory or translator_factory(settings), settings.of_hosts())


def model_host(bundle: Path | str, settings: ServerSettings, factory: TranslatorFactory | None = None) -> ModelHost:
    """Makes the host of one bundle, as `open_models`. Raises InvalidArtifactError and LevelNotFoundError."""
    return open_models({"": Path(bundle)}, settings, factory).first


class Server:
    """A gRPC server for one host or several. Make it and use it on one event loop; start it once."""

    def __init__(self, models: ModelHost | Models, settings: ServerSettings) -> None:
        self.models, self.settings = Models.of(models), settings
        self._draining = asyncio.Event()
        self._check_token = require_token(settings.token) if settings.token else None
        self._metrics = Metrics(self.models.statuses)
        self._metrics_server: WSGIServer | None = None
        self._health = Health(self._draining)
        self._grpc = grpc.aio.server(
            interceptors=[EdgeInterceptor(self._admit, self._metrics.call)],
            options=[
                # Otherwise a second server could listen on the same port, and would get some of the calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ],
        )
        self._handlers = handlers = Handlers(self.models, settings, self._metrics)
        translation = TranslationServicer(handlers, settings.stream_window, self._draining)
        rpc.add_TranslationServiceServicer_to_server(translation, self._grpc)
        rpc.add_AdminServiceServicer_to_server(AdminServicer(handlers), self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        add_reflection((*SERVICES, HEALTH), self._grpc, self._draining)
        self._watching: list[asyncio.Task[None]] = []
        self._started = False
        self.port = 0
        self.metrics_port: int | None = None

    @property
    def host(self) -> ModelHost:
        """The first model."""
        return self.models.first

    @property
    def address(self) -> str:
        """`host:port` for clients on this machine."""
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        return join_address(local, self.port)

    @property
    def draining(self) -> bool:
        """Whether `stop` has been called."""
        return self._draining.is_set()

    async def start(self) -> None:
        """Listens, loads the levels, and then reports its health as SERVING.

        Raises PortInUseError, InvalidRequestError (address or TLS files), InvalidArtifactError and
        DeviceUnavailableError; the server is then stopped. Raises UnavailableError if `stop` is called meanwhile.
        """
        self.port = self._bind()
        try:
            if self.settings.metrics_port is not None:
                self._metrics_server, self.metrics_port = self._metrics.serve(
                    self.settings.host, self.settings.metrics_port
                )
            await self._health.set_all(tuple(model_health(self.models)), NOT_SERVING)
            await self._grpc.start()
            await asyncio.to_thread(self.models.start)
        except BaseException:
            if not self.draining:
                await self.stop(0.0)
            raise
        self._started = True
        if not self.draining:
            health = {name: SERVING if serves else NOT_SERVING for name, serves in model_health(self.models).items()}
            for name, status in health.items():
                await self._health.set_all((name,), status)
            following = self._health.follow(lambda: model_health(self.models))
            self._watching.append(asyncio.create_task(following))
            if self.settings.idle_unload is not None:
                cleaning = clean(self._handlers.unload_idle, self.settings.idle_unload, self._draining)
                self._watching.append(asyncio.create_task(cleaning))

    def _bind(self) -> int:
        host, port = self.settings.host, self.settings.port
        check_port(host, port, "--port")
        pair = self.settings.tls_pair()
        if not self.settings.is_local and self._check_token is None:
            log.warning(
                "no token is set: anyone who can reach %s may translate, and may load and unload levels",
                host,
            )
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
                f"cannot serve TLS with {files}: {error}; give a PEM certificate chain and its key without a passphrase"
            ) from error

    def _admit(self, context: Context) -> None:
        if self._check_token is not None:
            self._check_token(context)
        if self.draining:
            raise UnavailableError(SHUTTING_DOWN)

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
        await self._health.enter_graceful_shutdown()  # before the streams of watchers end
        await self._grpc.stop(self.settings.drain_seconds if drain_seconds is None else drain_seconds)
        await asyncio.gather(*self._watching)
        await asyncio.to_thread(self.models.close, False)
        if self._metrics_server is not None:
            self._metrics_server.shutdown()
            self._metrics_server.server_close()
            self._metrics_server = None
