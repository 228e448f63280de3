"""Guards the HTTP address of the metrics: callers need a token with the scope `metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from hmc.artifact.errors import PermissionDeniedError, UnauthenticatedError
from hmc.serving.server.access.gate import Credentials, Gate

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def guarded(app: WSGIApplication, gate: Gate) -> WSGIApplication:
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
