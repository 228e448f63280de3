"""`hmc health`: whether a server serves, as an exit status for health checks of containers and for scripts."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from hmc.cli.common.options import NO_TLS, SERVER, Tls


def command(
    server: Annotated[str, SERVER] = "localhost:50051",
    tls: Tls = NO_TLS,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the server serves.")] = 2.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print the address and the health as JSON.")] = False,
) -> None:
    """Wait until a server is ready. The exit status is 0 if it is, and 75 if it is not within --timeout.

    A server is not ready while it loads, while it drains, and if its default level has failed. No token is needed.
    """
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.common.options import connected

    if not timeout > 0:
        raise InvalidRequestError(f"--timeout {timeout:g}: choose more than 0 seconds")
    with connected(server, None, tls) as client:
        client.wait_ready(timeout)
    typer.echo(json.dumps({"address": server, "status": "SERVING"}) if json_output else f"{server} is ready")
