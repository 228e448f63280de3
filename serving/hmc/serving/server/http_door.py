"""The HTTP listener as a part of the server: which of the server's parts it gets."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from hmc.serving.http.app import application
from hmc.serving.http.listener import Listener
from hmc.serving.http.methods import Methods
from hmc.serving.server.access.certificates import Certificates
from hmc.serving.server.access.listening import check_port, join_address, local_host
from hmc.serving.server.edge import Edge
from hmc.serving.server.settings import ServerSettings


class HttpDoor:
    """The HTTP listener of a server, or nothing if the settings have no port for it."""

    def __init__(
        self,
        settings: ServerSettings,
        edge: Edge,
        registry: CollectorRegistry,
        ready: Callable[[], str | None],
        *,
        needs_token: bool,
        shared: bool,
    ) -> None:
        """edge: that of the gRPC server. registry: of the metrics. ready, needs_token: see `application`. shared:
        whether other fronts listen on its port."""
        self._shared = shared
        self.methods = Methods(edge.wrap)
        """Servicers are added to it as to a gRPC server."""
        self._settings = settings
        self._registry = registry
        self._ready = ready
        self._needs_token = needs_token
        self._listener: Listener | None = None

    @property
    def address(self) -> str | None:
        """URL for clients on this machine; None while it does not listen."""
        if self._listener is None:
            return None
        scheme = "http" if self._settings.tls_cert is None else "https"
        return f"{scheme}://{join_address(local_host(self._settings.host), self._listener.port)}"

    async def start(self, certificates: Certificates | None) -> None:
        """Listens, with TLS if there are certificates. Raises PortInUseError and InvalidRequestError."""
        settings = self._settings
        if settings.http_port is None:
            return
        if not self._shared:
            check_port(settings.host, settings.http_port, "--http-port")
        app = application(self.methods, self._registry, self._ready, self._needs_token)
        pair = None if certificates is None else certificates.pair
        self._listener = Listener(
            app, settings.host, settings.http_port, pair, max_connections=settings.max_connections, shared=self._shared
        )
        await self._listener.start()

    def follow(self, certificates: Certificates) -> None:
        """Gives new connections the certificate that is in force now. May be called from any thread."""
        if self._listener is not None:
            self._listener.use(certificates.pair)

    async def stop(self, drain_seconds: float) -> None:
        """Takes no new requests, and lets running ones finish for so many seconds."""
        if self._listener is not None:
            await self._listener.stop(drain_seconds)
