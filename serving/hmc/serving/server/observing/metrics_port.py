"""The HTTP port of the metrics, on threads of its own: it answers when the event loop does not."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from hmc.artifact.errors import PermissionDeniedError, UnauthenticatedError
from hmc.serving.http.listener import OUT_OF_DESCRIPTORS, RETRY_S
from hmc.serving.server.access.gate import AccessGate, Credentials
from hmc.serving.server.access.listening import check_port

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

log = logging.getLogger(__name__)

METRICS_CONNECTIONS = 32
"""Most connections at a time; further ones are closed at once."""
SILENT_S = 20.0
"""Seconds after which a connection is closed whose client says nothing."""


class _Handler(WSGIRequestHandler):
    """Logs nothing, and waits for no client for ever."""

    timeout = SILENT_S  # the stubs of the standard library know None alone

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, and a bound on their number."""

    daemon_threads = True

    def __init__(self, host: str, port: int, app: WSGIApplication) -> None:
        """Takes the port; `serve_forever` answers. Raises OSError."""
        self.address_family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._free = threading.BoundedSemaphore(METRICS_CONNECTIONS)
        super().__init__(address[:2], _Handler)  # type: ignore[arg-type]  # an address of IPv6 has two more parts
        self.set_app(app)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a connection. Where the process has no descriptor left, it waits: one line a second in the log."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                log.warning("the metrics port takes no connection now: %s", error.strerror)
                time.sleep(RETRY_S)
            raise

    def verify_request(self, *_: object) -> bool:
        """Whether there is room for another connection."""
        return self._free.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the thread of a connection."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_: object) -> None:
        """Says only with `--verbose` that a client has gone, or was silent for too long."""
        log.debug("a connection to the metrics port ended early: %s", sys.exc_info()[1])


def serve_metrics(
    registry: CollectorRegistry,
    host: str,
    port: int,
    gate: AccessGate | None = None,
) -> tuple[MetricsServer, int]:
    """Serves metrics over HTTP from a thread. Returns the HTTP server and its port. Raises as `check_port`.

    gate: knows who may read the metrics. None: everybody.
    """
    check_port(host, port, "metrics_port")
    app = make_wsgi_app(registry)
    server = MetricsServer(host, port, app if gate is None or not gate.guards_metrics else _guarded(app, gate))
    threading.Thread(target=server.serve_forever, name="hmc-metrics", daemon=True).start()
    return server, int(server.server_port)


def _guarded(app: WSGIApplication, gate: AccessGate) -> WSGIApplication:
    """Wraps a WSGI application: 401 without a known token, 403 without the scope `metrics`."""

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            gate.admit(Credentials(environ.get("HTTP_AUTHORIZATION")), "metrics")
        except UnauthenticatedError as error:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [f"{error}\n".encode()]
        except PermissionDeniedError as error:
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [f"{error}\n".encode()]
        return app(environ, start_response)

    return call
