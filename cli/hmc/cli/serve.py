"""`hmc serve`: the gRPC server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hmc.serving.server.app import Server


def command(
    bundle: Annotated[Path, typer.Argument(help="Directory that `hmc compile` wrote.", metavar="BUNDLE")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of the machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 50051,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N. A device that is missing is an error.")
    ] = "auto",
    levels: Annotated[
        str, typer.Option(help="Levels to load, such as full,h36; `all` is all that run on the device.")
    ] = "all",
    default_level: Annotated[
        str | None, typer.Option(help="Level of requests that choose none; default: the bundle's.")
    ] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="Load levels when they are first asked for.")] = False,
    queue_size: Annotated[int, typer.Option(help="Texts that may wait at a level before it refuses more.")] = 1024,
    max_rows: Annotated[int, typer.Option(help="Hypotheses that a level decodes together.")] = 128,
    max_tokens: Annotated[
        int, typer.Option(help="These times the positions that the longest of their texts may need: bounds memory.")
    ] = 32768,
    max_texts: Annotated[int, typer.Option(help="Texts that one Translate call may hold.")] = 1024,
    threads: Annotated[int, typer.Option(help="Threads of each level; 0: one per physical core.")] = 0,
    workers: Annotated[
        int,
        typer.Option(
            help="Batches that a level runs at the same time, each on --threads threads (0 is then one): more "
            "throughput on a CPU, but a sentence alone takes longer."
        ),
    ] = 1,
    cache: Annotated[
        str,
        typer.Option(
            help="Folder for weights as this machine's kernels want them, which levels and processes share; auto: "
            "HMC_CACHE or the platform's; none: each level has its own.",
            metavar="DIR",
        ),
    ] = "auto",
    auto_pending: Annotated[
        int, typer.Option(help="Texts pending at a level (of short calls, for a short call) before `auto` steps down.")
    ] = 64,
    auto_target_ms: Annotated[
        float | None, typer.Option(help="95th percentile latency, in milliseconds, that `auto` keeps.")
    ] = None,
    drain_seconds: Annotated[float, typer.Option(help="Seconds that running calls get after SIGTERM.")] = 30.0,
    tls_cert: Annotated[
        Path | None, typer.Option(help="PEM certificate chain; with --tls-key, serves TLS only.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its PEM private key, not encrypted.")] = None,
    token: Annotated[
        str | None, typer.Option(help="Token that calls must send; better set in the environment.", envvar="HMC_TOKEN")
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port for Prometheus; none by default.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Say where it listens as a line of JSON.")] = False,
) -> None:
    """Serve a bundle over gRPC, at the level that each request chooses.

    SIGTERM or Ctrl-C stops taking calls and lets running ones finish; a second one stops at once.
    """
    import asyncio
    import logging
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what matters is raised; the rest is noise on the terminal
    from hmc.serving.selection import AutoPolicy
    from hmc.serving.server.app import Server, model_host, serve
    from hmc.serving.server.settings import ServerSettings

    if token is None and "HMC_TOKEN" in os.environ:  # an empty one must not open the server
        token = os.environ["HMC_TOKEN"]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    settings = ServerSettings(
        host=host,
        port=port,
        device=device,
        levels=None if levels == "all" else tuple(name.strip() for name in levels.split(",") if name.strip()),
        default_level=default_level,
        lazy=lazy,
        auto=AutoPolicy(max_pending=auto_pending, target_ms=auto_target_ms),
        max_texts_per_call=max_texts,
        queue_size=queue_size,
        max_rows=max_rows,
        max_tokens=max_tokens,
        threads=threads,
        workers=workers,
        cache=cache,
        drain_seconds=drain_seconds,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token=token,
        metrics_port=metrics_port,
    )

    async def run() -> None:
        server = Server(model_host(bundle, settings), settings)
        if not await serve(server, lambda server: _announce(server, json_output)):
            os._exit(0)  # a thread that loads a level would keep the process until it is done

    asyncio.run(run())


def _announce(server: Server, json_output: bool) -> None:
    import json

    status = server.host.status()
    loaded = [level.level.name for level in status.levels if level.loaded]
    if json_output:
        said = json.dumps(
            {
                "address": server.address,
                "metrics_port": server.metrics_port,
                "bundle_version": status.manifest.version,
                "device": status.device,
                "levels": loaded,
            }
        )
    else:
        said = (
            f"Serving {', '.join(loaded)} of bundle {status.manifest.version} on {server.address} ({status.device}).\n"
        )
        said += f'Try:  hmc translate --server {server.address} "A man rides a bicycle."'
    typer.echo(said)
