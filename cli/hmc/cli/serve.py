"""`hmc serve`: the gRPC server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hmc.cli.common.options import opt

LEVELS = "Which levels"
CAPACITY = "How much at a time"
RUNTIME = "Device and threads"
AUTO = "The level `auto`"
OPERATION = "Operation"
SECURITY = "Security"
LIMITS = "Limits of connections"
RAY = "Ray Serve"


@dataclass(frozen=True)
class OperationOptions:
    """Where the server listens, and how it reports."""

    host: Annotated[
        str | None,
        opt(OPERATION, "Address to listen on; 0.0.0.0: every address of this machine.", show_default="127.0.0.1"),
    ] = None
    port: Annotated[int | None, opt(OPERATION, "Port to listen on; 0 takes any free one.", show_default="50051")] = None
    drain_seconds: Annotated[
        float | None, opt(OPERATION, "Seconds that running calls get to finish after SIGTERM.", show_default="30.0")
    ] = None
    watch: Annotated[
        float | None,
        opt(
            OPERATION,
            "Check the paths of the bundles this often, and load a new version if there is one. Default: never.",
            metavar="SECONDS",
        ),
    ] = None
    metrics_port: Annotated[
        int | None, opt(OPERATION, "Port for Prometheus metrics over HTTP. Default: no metrics.")
    ] = None
    http_port: Annotated[
        int | None,
        opt(OPERATION, "Port for HTTP: the playground, JSON, LibreTranslate's API, metrics. Default: no HTTP."),
    ] = None
    trace_to: Annotated[
        str | None,
        opt(
            OPERATION,
            "Send a span of every call to this OpenTelemetry collector (OTLP over HTTP), such as "
            "http://localhost:4318. Needs the extra `tracing`. Default: no spans.",
            metavar="URL",
        ),
    ] = None
    log_format: Annotated[str | None, opt(OPERATION, "text, or json: an object a line.", show_default="text")] = None
    log_calls: Annotated[bool | None, opt(OPERATION, "Log a line for every call.", "--log-calls/--no-log-calls")] = None
    log_texts: Annotated[
        bool | None,
        opt(
            OPERATION,
            "Let texts appear in the log: the texts of every call, and texts that unexpected errors quote.",
            "--log-texts/--no-log-texts",
        ),
    ] = None


@dataclass(frozen=True)
class RuntimeOptions:
    """Devices, threads and processes."""

    device: Annotated[
        str | None,
        opt(
            RUNTIME,
            "auto, cpu, cuda, cuda:N, or several such as cuda:0,cuda:1: each gets a replica of every level. A "
            "device that is missing is an error.",
            show_default="auto",
        ),
    ] = None
    gpu_memory: Annotated[
        str | None,
        opt(
            RUNTIME,
            "Most memory of each CUDA device for weights and caches, such as 8GiB, 500MB or 80% of what is free "
            "at the start. Default: 80%.",
            metavar="SIZE",
        ),
    ] = None
    gpu_attention: Annotated[
        str | None,
        opt(
            RUNTIME,
            "How CUDA computes attention. plain: no plans for shapes; efficient: also fused kernels; cudnn: "
            "cuDNN, which builds a plan for every new shape.",
            metavar="NAME",
            show_default="plain",
        ),
    ] = None
    executor: Annotated[
        str | None,
        opt(
            RUNTIME,
            "Program that runs the levels. onnxruntime runs their graphs; native runs their step programs in C, for "
            "int8 and fp32; reference runs these in NumPy, some hundred times slower, for comparison. auto takes "
            "native for int8 on a CPU, else onnxruntime.",
            metavar="NAME",
            show_default="auto",
        ),
    ] = None
    threads: Annotated[
        int | None,
        opt(
            RUNTIME,
            "Threads of each worker. 0: as measured, or one for each physical core with --workers 1.",
            show_default="0",
        ),
    ] = None
    workers: Annotated[
        int | None,
        opt(
            RUNTIME,
            "Batches that a level runs at the same time, each on --threads threads, or on one with --threads 0. "
            "More workers raise the throughput on a CPU, but a single sentence takes longer. 0: as measured here.",
            show_default="0",
        ),
    ] = None
    fronts: Annotated[
        int | None,
        opt(
            RUNTIME,
            "Processes that share the port and have gRPC, HTTP and texts, beside one process with the levels. 0: one "
            "process does everything. Default: by the cores, one on up to seven.",
            show_default="by the cores",
        ),
    ] = None
    cache: Annotated[
        str | None,
        opt(
            RUNTIME,
            "Folder for weights in the form that this machine's kernels need. Levels and processes share them. "
            "auto: HMC_CACHE, or the platform's cache folder; none: every level has its own copy in memory.",
            metavar="DIR",
            show_default="auto",
        ),
    ] = None


@dataclass(frozen=True)
class LevelOptions:
    """The levels that are loaded."""

    levels: Annotated[
        str | None,
        opt(
            LEVELS,
            "Names of the levels to load, such as full,h36, or with their model, such as en-de/h36; all: every "
            "level that runs on the device.",
            show_default="all",
        ),
    ] = None
    default_level: Annotated[
        str | None,
        opt(
            LEVELS,
            "Level for requests that choose none; for several models as en-de/h36,fr-en/full. Default: the "
            "bundle's default level.",
            metavar="NAME",
        ),
    ] = None
    lazy: Annotated[
        bool | None,
        opt(
            LEVELS,
            "Load a level when it is first requested. The first model, and models that --levels names, load "
            "their default level at the start.",
            "--lazy/--no-lazy",
        ),
    ] = None
    memory: Annotated[
        str | None,
        opt(
            LEVELS,
            "Most memory of this machine for the weights of all levels, such as 4GiB. With --lazy, a level that "
            "needs room unloads idle levels, least recently used first.",
            metavar="SIZE",
            show_default="no limit",
        ),
    ] = None
    idle_unload: Annotated[
        float | None,
        opt(
            LEVELS,
            "With --lazy: unload a level that no request has used for this time, except default levels that were "
            "loaded at the start.",
            metavar="SECONDS",
            show_default="never",
        ),
    ] = None


@dataclass(frozen=True)
class CapacityOptions:
    """How much the server takes at a time."""

    queue_size: Annotated[
        int | None,
        opt(
            CAPACITY,
            "Sentences that may wait at one level. A quarter more may wait if their callers have less than their fair "
            "share. Further sentences are refused.",
            show_default="1024",
        ),
    ] = None
    max_rows: Annotated[
        int | None, opt(CAPACITY, "Most hypotheses that a level decodes in one batch.", show_default="128")
    ] = None
    max_tokens: Annotated[
        int | None,
        opt(
            CAPACITY,
            "Limits the memory of a batch: most hypotheses × positions that its longest text may need.",
            show_default="32768",
        ),
    ] = None
    max_texts: Annotated[
        int | None, opt(CAPACITY, "Largest number of texts in a Translate or Score call.", show_default="1024")
    ] = None
    stream_window: Annotated[
        int | None, opt(CAPACITY, "Largest number of texts of one stream under way.", show_default="256")
    ] = None


@dataclass(frozen=True)
class AutoOptions:
    """When the level `auto` takes fewer heads."""

    auto_pending: Annotated[
        int | None,
        opt(
            AUTO,
            "`auto` skips a level while this many texts are pending there, and takes one with fewer heads. For a "
            "call of at most 32 texts, only texts of such calls count.",
            metavar="N",
            show_default="64",
        ),
    ] = None
    auto_target_ms: Annotated[
        float | None,
        opt(
            AUTO,
            "`auto` also takes fewer heads to keep the 95th percentile of queue and compute below this, for calls "
            "of at most 32 texts. Default: no such limit.",
            metavar="MS",
        ),
    ] = None


@dataclass(frozen=True)
class SecurityOptions:
    """Who may do what."""

    tls_cert: Annotated[
        Path | None,
        opt(
            SECURITY,
            "PEM certificate chain. With it and --tls-key the server accepts only TLS. Read again when it changes.",
            metavar="FILE",
        ),
    ] = None
    tls_key: Annotated[
        Path | None, opt(SECURITY, "PEM private key of the certificate, unencrypted.", metavar="FILE")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        opt(
            SECURITY,
            "PEM file of authorities. Every client must then show a certificate of one of them (mutual TLS).",
            metavar="FILE",
        ),
    ] = None
    token: Annotated[
        str | None,
        opt(
            SECURITY,
            "Token that opens everything. Set it in the environment (HMC_TOKEN): other users can see command lines.",
        ),
    ] = None
    tokens: Annotated[
        Path | None,
        opt(
            SECURITY,
            "TOML or JSON file of hashed tokens with scopes and limits; `hmc token new` writes its lines. Read again "
            "when it changes.",
            metavar="FILE",
        ),
    ] = None
    admin_address: Annotated[
        str | None,
        opt(
            SECURITY,
            "Serve AdminService only here: HOST:PORT, or unix:PATH. Default: beside TranslationService.",
            metavar="ADDRESS",
        ),
    ] = None
    bundle_root: Annotated[
        Path | None,
        opt(
            SECURITY,
            "Folder below which the bundles of a reload must lie. Default: the folder that holds the bundle.",
            metavar="DIR",
        ),
    ] = None


@dataclass(frozen=True)
class LimitOptions:
    """Limits of connections."""

    max_connections: Annotated[
        int | None, opt(LIMITS, "Most connections to each port; further ones are closed at once.", show_default="1024")
    ] = None
    max_streams: Annotated[int | None, opt(LIMITS, "Most calls at a time on one connection.", show_default="1024")] = (
        None
    )
    max_message_mib: Annotated[int | None, opt(LIMITS, "Largest request, in MiB.", show_default="64")] = None
    max_metadata_kib: Annotated[int | None, opt(LIMITS, "Largest metadata of a call, in KiB.", show_default="16")] = (
        None
    )
    connection_age_seconds: Annotated[
        float | None,
        opt(
            LIMITS,
            "Seconds after which a connection takes no further calls, and the client opens another. 0: no limit.",
            show_default="3600.0",
        ),
    ] = None
    connection_grace_seconds: Annotated[
        float | None,
        opt(
            LIMITS,
            "Seconds that running calls of a connection have left when it has reached its age. 0: no limit.",
            show_default="0.0",
        ),
    ] = None
    connection_idle_seconds: Annotated[
        float | None,
        opt(LIMITS, "Seconds without a call after which a connection is closed. 0: no limit.", show_default="900.0"),
    ] = None


def command(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(
            help="Directories that `hmc compile` wrote, each with the name of its model, as in en-de=BUNDLE. Without a "
            "name, the model is called after its languages. The first model serves requests that choose none.",
            metavar="[NAME=]BUNDLE...",
            show_default=False,
        ),
    ] = None,
    *,
    operation: OperationOptions,
    config: Annotated[
        Path | None,
        opt(
            OPERATION,
            "TOML file of settings. The environment (HMC_PORT …) and options override it. Default: HMC_CONFIG.",
            metavar="FILE",
        ),
    ] = None,
    print_config: Annotated[
        bool, opt(OPERATION, "Print all settings and where each comes from, and exit.", "--print-config")
    ] = False,
    json_output: Annotated[bool, opt(OPERATION, "Print the address as a line of JSON.", "--json")] = False,
    runtime: RuntimeOptions,
    loading: LevelOptions,
    capacity: CapacityOptions,
    auto: AutoOptions,
    security: SecurityOptions,
    limits: LimitOptions,
    ray: Annotated[bool, opt(RAY, "Serve through Ray Serve: replicas of the levels behind one port.", "--ray")] = False,
    replicas: Annotated[
        str | None,
        opt(
            RAY,
            "With --ray: number of replicas; or two numbers such as 1:3, between which it follows the queued texts.",
            metavar="N|MIN:MAX",
            show_default="1",
        ),
    ] = None,
) -> None:
    """Serve bundles over gRPC, at the level that each request chooses.

    Every option can also be given in a file (--config) or in the environment (HMC_PORT for --port).

    After SIGTERM or Ctrl-C the server refuses new calls and finishes running ones. A second signal stops it at once.
    """
    import logging
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors are raised; gRPC's own log would only clutter the terminal
    from hmc.artifact.errors import InvalidRequestError
    from hmc.cli.common.options import check_unused
    from hmc.cli.running import serve_models, serve_on_ray
    from hmc.serving.server.configuration import as_toml, load, shown
    from hmc.serving.server.observing.logs import set_up

    groups = (operation, runtime, loading, capacity, auto, security, limits)
    options = {"bundles": bundles} | {name: value for group in groups for name, value in vars(group).items()}
    given = {name: value for name, value in options.items() if value is not None}
    if runtime.device == "cpu":  # in a file or the environment they may stand for other servers
        gpu = {"gpu_memory": runtime.gpu_memory, "gpu_attention": runtime.gpu_attention}
        check_unused("works only on CUDA, and not with --device cpu: leave it out", **gpu)
    if limits.connection_age_seconds == 0:
        grace = limits.connection_grace_seconds
        check_unused(
            "follows --connection-age-seconds, which 0 turns off: leave it out", connection_grace_seconds=grace
        )
    configuration = load(given, os.environ, config)
    settings = configuration.settings
    if print_config:
        typer.echo(json.dumps(shown(configuration)) if json_output else as_toml(configuration), nl=json_output)
        return
    if not configuration.bundles:
        raise InvalidRequestError("no bundle to serve: give [NAME=]BUNDLE, or `bundles` in the file")
    if replicas is not None and not ray:
        raise InvalidRequestError("--replicas works only with --ray: add --ray, or leave it out")
    if ray and settings.fronts is not None:
        raise InvalidRequestError("--fronts does not work with --ray: give --replicas instead")
    set_up(settings.log_format, texts=settings.log_texts)

    def say_settings() -> None:  # once it serves: an error is then not preceded by them
        effective = shown(configuration)
        logging.getLogger("hmc").info("settings %s", json.dumps(effective), extra={"fields": {"settings": effective}})

    if ray:
        serve_on_ray(configuration.bundles, settings, replicas or "1", say_settings, json_output=json_output)
        return
    serve_models(configuration.bundles, settings, say_settings, json_output=json_output)
