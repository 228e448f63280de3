"""`hmc serve`: the gRPC server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from hmc.serving.runtime.device import CudaAttention

LEVELS, CAPACITY, RUNTIME, AUTO, SECURITY, OPERATION = (
    "Which levels", "How much at a time", "Device and threads", "The level `auto`", "Security", "Operation",
)  # fmt: skip


def command(
    bundles: Annotated[
        list[str],
        typer.Argument(
            help="Directories that `hmc compile` wrote, each with the name of its model, as in en-de=BUNDLE. Without a "
            "name, the model is called after its languages. The first model serves requests that choose none.",
            metavar="[NAME=]BUNDLE...",
        ),
    ],
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; 0.0.0.0: every address of this machine.", rich_help_panel=OPERATION),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes any free one.", rich_help_panel=OPERATION)
    ] = 50051,
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, cuda:N, or several such as cuda:0,cuda:1: each gets a replica of every level. A "
            "device that is missing is an error.",
            rich_help_panel=RUNTIME,
        ),
    ] = "auto",
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="Most memory of each CUDA device for weights and caches, such as 8GiB, 500MB or 80% of what is free "
            "at the start. Default: 80%.",
            metavar="SIZE",
            rich_help_panel=RUNTIME,
        ),
    ] = None,
    gpu_attention: Annotated[
        str,
        typer.Option(
            help="How CUDA computes attention. plain: no plans for shapes; efficient: also fused kernels; cudnn: "
            "cuDNN, which builds a plan for every new shape.",
            metavar="NAME",
            rich_help_panel=RUNTIME,
        ),
    ] = "plain",
    levels: Annotated[
        str,
        typer.Option(
            help="Names of the levels to load, such as full,h36, or with their model, such as en-de/h36; all: every "
            "level that runs on the device.",
            rich_help_panel=LEVELS,
        ),
    ] = "all",
    default_level: Annotated[
        str | None,
        typer.Option(
            help="Level for requests that choose none; for several models as en-de/h36,fr-en/full. Default: the "
            "bundle's default level.",
            metavar="NAME",
            rich_help_panel=LEVELS,
        ),
    ] = None,
    lazy: Annotated[
        bool,
        typer.Option(
            "--lazy",
            help="Load a level when it is first requested. Of several models, only the first one and those of --levels "
            "load their default level at the start.",
            rich_help_panel=LEVELS,
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Most memory of this machine for the weights of all levels, such as 4GiB. With --lazy, a level that "
            "needs room takes that of idle ones, least recently used first. Default: no limit.",
            metavar="SIZE",
            rich_help_panel=LEVELS,
        ),
    ] = None,
    idle_unload: Annotated[
        float | None,
        typer.Option(
            help="With --lazy: unload a level that no request has used for so long, except default levels that were "
            "loaded at the start. Default: never.",
            metavar="SECONDS",
            rich_help_panel=LEVELS,
        ),
    ] = None,
    queue_size: Annotated[
        int,
        typer.Option(help="Texts that may wait at one level. Further texts are refused.", rich_help_panel=CAPACITY),
    ] = 1024,
    max_rows: Annotated[
        int,
        typer.Option(help="Most hypotheses that a level decodes in one batch.", rich_help_panel=CAPACITY),
    ] = 128,
    max_tokens: Annotated[
        int,
        typer.Option(
            help="Limits the memory of a batch: most hypotheses × positions that its longest text may need.",
            rich_help_panel=CAPACITY,
        ),
    ] = 32768,
    max_texts: Annotated[int, typer.Option(help="Most texts in one Translate call.", rich_help_panel=CAPACITY)] = 1024,
    threads: Annotated[
        int, typer.Option(help="Threads of each level. 0: one for each physical core.", rich_help_panel=RUNTIME)
    ] = 0,
    workers: Annotated[
        int,
        typer.Option(
            help="Batches that a level runs at the same time, each on --threads threads (0 then means one). More "
            "workers raise the throughput on a CPU, but a single sentence takes longer.",
            rich_help_panel=RUNTIME,
        ),
    ] = 1,
    cache: Annotated[
        str,
        typer.Option(
            help="Folder for weights in the form that this machine's kernels need. Levels and processes share them. "
            "auto: HMC_CACHE, or the platform's cache folder; none: every level has its own copy in memory.",
            metavar="DIR",
            rich_help_panel=RUNTIME,
        ),
    ] = "auto",
    auto_pending: Annotated[
        int,
        typer.Option(
            help="`auto` skips a level while this many texts are pending there, and takes one with fewer heads. For a "
            "call of at most 32 texts, only texts of such calls count.",
            metavar="N",
            rich_help_panel=AUTO,
        ),
    ] = 64,
    auto_target_ms: Annotated[
        float | None,
        typer.Option(
            help="`auto` also takes fewer heads to keep the 95th percentile of latency below this. Default: no such "
            "limit.",
            metavar="MS",
            rich_help_panel=AUTO,
        ),
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(help="Seconds that running calls get to finish after SIGTERM.", rich_help_panel=OPERATION)
    ] = 30.0,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="PEM certificate chain. With it and --tls-key the server accepts only TLS.",
            metavar="FILE",
            rich_help_panel=SECURITY,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(help="PEM private key of the certificate, unencrypted.", metavar="FILE", rich_help_panel=SECURITY),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="Token that every call must send. Set it in the environment: other users can see command lines.",
            envvar="HMC_TOKEN",
            rich_help_panel=SECURITY,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(help="Port for Prometheus metrics over HTTP. Default: no metrics.", rich_help_panel=OPERATION),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the address as a line of JSON.", rich_help_panel=OPERATION)
    ] = False,
) -> None:
    """Serve bundles over gRPC, at the level that each request chooses.

    After SIGTERM or Ctrl-C the server refuses new calls and finishes running ones. A second signal stops it at once.
    """
    import logging
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; gRPC's own log would only clutter the terminal
    from hmc.cli.running import serve_models
    from hmc.serving.levels.choosing import AutoPolicy
    from hmc.serving.server.settings import ServerSettings

    if token is None and "HMC_TOKEN" in os.environ:  # an empty token must be refused, not taken for none
        token = os.environ["HMC_TOKEN"]
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    settings = ServerSettings(
        host=host,
        port=port,
        device=device,
        gpu_memory=gpu_memory,
        gpu_attention=cast("CudaAttention", gpu_attention),  # checked by the settings
        levels=None if levels == "all" else tuple(name.strip() for name in levels.split(",") if name.strip()),
        default_level=default_level,
        lazy=lazy,
        memory=memory,
        idle_unload=idle_unload,
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

    serve_models(bundles, settings, json_output=json_output)
