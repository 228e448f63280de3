"""`hmc serve --ray`: Ray and the application on this machine, until a signal."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hmc.artifact.errors import FailedPreconditionError, InvalidRequestError
from hmc.serving.ray.registering import FUNCTIONS
from hmc.serving.server.access.listening import check_port, join_address, local_host
from hmc.serving.server.settings import ServerSettings

if TYPE_CHECKING:
    from hmc.serving.ray.replica import Replica

ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # HAProxy, which takes a fifth of the time of Ray's own proxy
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would report to its makers
}
"""Read when Ray Serve is imported."""


def prepare() -> None:
    """Sets the variables that Ray reads at its import, unless they are set. Call it first."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def run(
    bundles: tuple[str, ...],
    settings: ServerSettings,
    replicas: str,
    ready: Callable[[str], None],
    replica: type[Replica] | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, and then lets running calls finish.

    replicas: as in `Replicas.parse`. ready: called with the address when replicas serve. replica: what
    serves; None: `Replica`.

    Raises InvalidRequestError for settings that Ray cannot keep, PortInUseError, and FailedPreconditionError with
    Ray's words if the replicas do not start.
    """
    prepare()
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    from hmc.serving.ray.application import Replicas, application
    from hmc.serving.ray.replica import Replica

    app = application(bundles, settings, Replicas.parse(replicas), replica or Replica)
    if settings.port == 0:
        raise InvalidRequestError("port 0: Ray opens the port that you name; give one")
    check_port(settings.host, settings.port, "port")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    ray.init(log_to_driver=False, logging_level=logging.WARNING, configure_logging=False, **_here())
    try:
        serve.start(
            http_options=HTTPOptions(host=settings.host, port=int(os.environ.get("RAY_SERVE_HTTP_PORT", "8000"))),
            grpc_options=gRPCOptions(port=settings.port, grpc_servicer_functions=list(FUNCTIONS)),
        )
        try:
            serve.run(app, name="hmc", route_prefix="/")
        except RuntimeError as error:
            raise FailedPreconditionError(f"the replicas do not start: {error}") from error
        ready(join_address(local_host(settings.host), settings.port))
        stopped.wait()
    finally:
        with suppress(Exception):
            serve.shutdown()
        ray.shutdown()


def _here() -> dict[str, Any]:
    return {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
