"""Running the gRPC server until it is told to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from hmc.serving.server.app import Server
    from hmc.serving.server.settings import ServerSettings


def serve_models(bundles: Sequence[str], settings: ServerSettings, *, json_output: bool) -> None:
    """Serves `[NAME=]BUNDLE` until a signal, and prints the address, as JSON if asked. Raises as `open_models`."""
    import asyncio
    import os

    from hmc.serving.levels.names import parse_models
    from hmc.serving.server.app import Server, open_models
    from hmc.serving.server.run import serve

    async def run() -> None:
        server = Server(open_models(parse_models(bundles), settings), settings)
        if not await serve(server, lambda server: _announce(server, json_output)):
            os._exit(0)  # else a thread that loads a level would keep the process alive

    asyncio.run(run())


def serve_on_ray(bundles: Sequence[str], settings: ServerSettings, replicas: str, *, json_output: bool) -> None:
    """Serves `[NAME=]BUNDLE` behind Ray Serve until a signal, and prints the address, as JSON if asked. Raises as
    `hmc.serving.ray.running.run`."""
    import json

    from hmc.serving.ray.running import run

    def ready(address: str) -> None:
        if json_output:
            typer.echo(json.dumps({"address": address, "replicas": replicas}))
        else:
            typer.echo(f"Serving on {address} through Ray, with {replicas} replicas.\n"
                       f'Try:  hmc translate --server {address} "A man rides a bicycle."')  # fmt: skip

    run(tuple(bundles), settings, replicas, ready)


def _announce(server: Server, json_output: bool) -> None:
    import json

    statuses = server.models.statuses()
    status, several = statuses[0], len(statuses) > 1
    loaded = [level.level.name for level in status.levels if level.loaded]
    models = {s.model: [level.level.name for level in s.levels if level.loaded] for s in statuses}
    if json_output:
        said = json.dumps(
            {
                "address": server.address,
                "admin_address": server.admin_address,
                "metrics_port": server.metrics_port,
                "http_address": server.http_address,
                "bundle_version": status.manifest.version,
                "device": status.device,
                "levels": loaded,
                "models": models,
            }
        )
    elif several:
        named = "; ".join(f"{model}: {', '.join(names) or 'loaded on first use'}" for model, names in models.items())
        said = f"Serving {named}, on {server.address}.\n"
        said += f'Try:  hmc translate --server {server.address} --model {status.model} "A man rides a bicycle."'
    else:
        said = (
            f"Serving {', '.join(loaded)} of bundle {status.manifest.version} on {server.address} ({status.device}).\n"
        )
        said += f'Try:  hmc translate --server {server.address} "A man rides a bicycle."'
        if server.http_address:
            said += f"\nOpen: {server.http_address}/ in a browser"
    typer.echo(said)
