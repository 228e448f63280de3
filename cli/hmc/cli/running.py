"""Running the gRPC server until it is told to stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from hmc.serving.server.settings import ServerSettings


log = logging.getLogger(__name__)


def _nothing() -> None:
    pass


def serve_models(
    bundles: Sequence[str], settings: ServerSettings, ready: Callable[[], None] = _nothing, *, json_output: bool
) -> None:
    """Serves `[NAME=]BUNDLE` until a signal, and prints the address, as JSON if asked. Raises as `open_models`.

    ready: called when the server serves, before the log says so.
    """
    import asyncio

    def announce(summary: dict[str, Any]) -> None:
        ready()
        _log_ready(summary)
        _announce(summary, json_output)

    fronts = settings.fronts_here()
    if fronts == 0:
        asyncio.run(_serve_alone(bundles, settings, announce))
    elif fronts == 1:
        asyncio.run(_serve_one(bundles, settings, announce))
    else:
        asyncio.run(_serve_several(bundles, settings, announce))


def _log_ready(summary: dict[str, Any]) -> None:
    where = [f"gRPC {summary['address']}"]
    where += [f"HTTP {summary['http_address']}"] if summary["http_address"] else []
    where += [f"administration {summary['admin_address']}"] if summary["admin_address"] != summary["address"] else []
    where += [f"metrics port {summary['metrics_port']}"] if summary["metrics_port"] is not None else []
    levels = [
        f"{f'{model}: ' if len(summary['models']) > 1 else ''}{', '.join(names) or 'levels on first use'}"
        for model, names in summary["models"].items()
    ]
    log.info("ready: %s; %s", ", ".join(where), "; ".join(levels), extra={"fields": {"ready": summary}})


Announce = Callable[[dict[str, Any]], None]


async def _serve_alone(bundles: Sequence[str], settings: ServerSettings, announce: Announce) -> None:
    from hmc.serving.levels.models import parse_models
    from hmc.serving.server.app import Server, open_models
    from hmc.serving.server.run import serve, summary_of

    server = Server(open_models(parse_models(bundles), settings), settings)
    if not await serve(server, lambda server: announce(summary_of(server))):
        _end()


async def _serve_one(bundles: Sequence[str], settings: ServerSettings, announce: Announce) -> None:
    from hmc.serving.server.processes.front import serve_with_engine
    from hmc.serving.server.run import summary_of

    if not await serve_with_engine(bundles, settings, lambda server: announce(summary_of(server))):
        _end()


def _end() -> None:
    import os

    os._exit(0)  # else a thread that loads a level would keep the process alive


async def _serve_several(bundles: Sequence[str], settings: ServerSettings, announce: Announce) -> None:
    from hmc.serving.server.processes.supervisor import Supervisor

    with Supervisor(bundles, settings) as supervisor:
        await supervisor.run(announce)


def serve_on_ray(
    bundles: Sequence[str], settings: ServerSettings, replicas: str, say_settings: Callable[[], None], *,
    json_output: bool,
) -> None:  # fmt: skip
    """Serves `[NAME=]BUNDLE` behind Ray Serve until a signal, and prints the address, as JSON if asked. Raises as
    `hmc.serving.ray.running.run`."""
    import json

    from hmc.serving.ray.running import run

    def ready(address: str) -> None:
        say_settings()
        log.info("ready: gRPC %s, through Ray, with %s replicas", address, replicas)
        if json_output:
            typer.echo(json.dumps({"address": address, "replicas": replicas}))
        else:
            typer.echo(f"Serving on {address} through Ray, with {replicas} replicas.\n"
                       f'Try:  hmc translate --server {address} "A man rides a bicycle."')  # fmt: skip

    run(tuple(bundles), settings, replicas, ready)


def _announce(summary: dict[str, Any], json_output: bool) -> None:
    import json

    address = summary["address"]
    models = summary["models"]
    fronts = summary["fronts"]
    by = "" if fronts <= 1 else f", {fronts} fronts"
    if json_output:
        said = json.dumps(summary)
    elif len(models) > 1:
        named = "; ".join(f"{model}: {', '.join(names) or 'loaded on first use'}" for model, names in models.items())
        said = f"Serving {named}, on {address}{by}.\n"
        said += f'Try:  hmc translate --server {address} --model {next(iter(models))} "A man rides a bicycle."'
    else:
        version = summary["bundle_version"]
        device = summary["device"]
        said = f"Serving {', '.join(summary['levels'])} of bundle {version} on {address} ({device}{by}).\n"
        said += f'Try:  hmc translate --server {address} "A man rides a bicycle."'
        if summary["http_address"]:
            said += f"\nOpen: {summary['http_address']}/ in a browser"
    typer.echo(said)
