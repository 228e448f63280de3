"""Running the gRPC server until it is told to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hmc.serving.server.settings import ServerSettings


def serve_models(bundles: Sequence[str], settings: ServerSettings, *, json_output: bool) -> None:
    """Serves `[NAME=]BUNDLE` until a signal, and prints the address, as JSON if asked. Raises as `open_models`."""
    import asyncio

    asyncio.run((_serve_one if settings.processes == 1 else _serve_several)(bundles, settings, json_output))


async def _serve_one(bundles: Sequence[str], settings: ServerSettings, json_output: bool) -> None:
    import os

    from hmc.serving.levels.names import parse_models
    from hmc.serving.server.app import Server, open_models
    from hmc.serving.server.observing.summary import summary_of
    from hmc.serving.server.run import serve

    server = Server(open_models(parse_models(bundles), settings), settings)
    if not await serve(server, lambda server: _announce(summary_of(server), json_output)):
        os._exit(0)  # else a thread that loads a level would keep the process alive


async def _serve_several(bundles: Sequence[str], settings: ServerSettings, json_output: bool) -> None:
    from hmc.serving.server.processes.supervisor import Supervisor

    with Supervisor(bundles, settings) as supervisor:
        await supervisor.run(lambda summary: _announce(summary, json_output))


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


def _announce(summary: dict[str, Any], json_output: bool) -> None:
    import json

    address, models, processes = summary["address"], summary["models"], summary["processes"]
    by = "" if processes == 1 else f", {processes} processes"
    if json_output:
        said = json.dumps(summary)
    elif len(models) > 1:
        named = "; ".join(f"{model}: {', '.join(names) or 'loaded on first use'}" for model, names in models.items())
        said = f"Serving {named}, on {address}{by}.\n"
        said += f'Try:  hmc translate --server {address} --model {next(iter(models))} "A man rides a bicycle."'
    else:
        version, device = summary["bundle_version"], summary["device"]
        said = f"Serving {', '.join(summary['levels'])} of bundle {version} on {address} ({device}{by}).\n"
        said += f'Try:  hmc translate --server {address} "A man rides a bicycle."'
        if summary["http_address"]:
            said += f"\nOpen: {summary['http_address']}/ in a browser"
    typer.echo(said)
