"""The settings of a server. `hmc serve --help` imports this module, so it loads what its checks need only with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, model_validator

from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.settings import SettingsModel
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.support import AnyExecutor, CudaAttention

if TYPE_CHECKING:
    from hmc.serving.levels.models import HostSettings

MOST_FRONTS = 64
CORES_OF_A_FRONT = 4
"""A front for so many cores, where nobody says how many: one carries the calls of about so many cores of work."""


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A list, which may be written with commas."""
Number = Annotated[int, Field(ge=1)]
PORT = Field(ge=0, le=65535)
POSITIVE = Field(gt=0)


class ServerSettings(SettingsModel):
    """How to serve. Raises InvalidRequestError as `SettingsModel` does, for settings that do not go together, and for
    files for TLS or of tokens that cannot be used."""

    host: str = "127.0.0.1"
    """Address to listen on. "0.0.0.0" and "::" listen on every address of the machine."""
    port: Annotated[int, PORT] = 50051
    """Port to listen on; 0 takes any free one."""
    drain_seconds: NonNegativeFloat = 30.0
    """Seconds that running calls get to finish after SIGTERM."""
    watch: Annotated[float | None, Field(gt=0, allow_inf_nan=False), "SECONDS"] = None
    """Check the paths of the bundles this often. A new version that is put there is loaded and replaces the old one, as
    by Reload. Default: never."""
    metrics_port: Annotated[int | None, PORT] = None
    """Port for Prometheus metrics over HTTP, on the same host; 0 takes any free one. Default: no metrics."""
    http_port: Annotated[int | None, PORT] = None
    """Port for HTTP on the same host: the playground, JSON, LibreTranslate's API, metrics; 0 takes any free one.
    Default: no HTTP."""
    trace_to: Annotated[str | None, "URL"] = None
    """Send a span of every call to this OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318. Needs
    the extra `tracing`. Default: no spans."""
    log_format: Literal["text", "json"] = "text"
    """How the server logs: text, or json with an object a line."""
    log_calls: bool = False
    """Log a line for every call that ends: its name, status, time, caller and request id."""
    log_texts: bool = False
    """Let texts appear in the log: the texts of every call, and texts that unexpected errors quote."""

    device: str = "auto"
    """Where levels run: auto, cpu, cuda, cuda:N, or several such as cuda:0,cuda:1. Each of several gets a replica of
    every level. A device that is missing is an error."""
    gpu_memory: Annotated[str | None, "SIZE"] = None
    """Most memory that the levels of this process may reserve on each CUDA device for weights and caches: 8GiB, 500MB,
    bytes, or a share of what is free at the start. Default: 80%."""
    gpu_attention: CudaAttention = "plain"
    """How CUDA computes attention. plain: no plans for shapes; efficient: also fused kernels; cudnn: cuDNN, which
    builds a plan for every new shape."""
    executor: Annotated[AnyExecutor, "NAME"] = "auto"
    """Program that runs the levels. onnxruntime runs their graphs; native runs their step programs in C, for int8 and
    fp32; reference runs these in NumPy, some hundred times slower, for comparison. auto takes native for int8 on a CPU,
    else onnxruntime."""
    threads: NonNegativeInt = 0
    """Threads of each worker of a level. 0: as measured if `workers` is 0 too; one for each physical core that this
    process may use if there is one worker; a single one if there are several."""
    workers: NonNegativeInt = 0
    """Batches that a level runs at the same time. More than one raises the throughput on a CPU, but a single sentence
    takes longer. 0: as measured on this machine, or one if `threads` are given."""
    fronts: Annotated[int | None, Field(ge=0, le=MOST_FRONTS)] = None
    """Processes with gRPC, HTTP and texts, which share the port, beside one process with the levels. 0: one process
    does everything. Default: 0 on a single core, 1 on up to seven, and one for every four cores from there."""
    cache: Annotated[str | Path, "DIR"] = "auto"
    """Folder of weights that are packed for this machine's processor. Levels and processes map them and share the
    memory. auto: HMC_CACHE, or the platform's folder for caches. none: every level has a copy of its own in memory, as
    where the folder cannot be written."""

    levels: Annotated[Names | None, BeforeValidator(lambda value: None if value == "all" else value)] = None
    """Levels to load at the start, besides the default level, such as full,h36, or with their model, such as en-de/h36.
    Default: all, every level that runs on the device."""
    default_level: Annotated[str | None, "NAME"] = None
    """Level for requests that choose none; for several models as en-de/h36,fr-en/full. Default: the bundle's default
    level."""
    lazy: bool = False
    """Load a level when a request first chooses it. The first model, and models that `levels` names, load their default
    level at the start."""
    memory: Annotated[str | None, "SIZE"] = None
    """Most memory of this machine for the weights of all levels together: 4GiB, 500MB or bytes. With `lazy`, a level
    that needs room unloads idle levels, least recently used first. Default: no limit."""
    idle_unload: Annotated[float | None, POSITIVE, "SECONDS"] = None
    """With `lazy`: unload a level that no request has used for this time, except default levels that were loaded at the
    start. Default: never."""

    queue_size: Number = 1024
    """Sentences that may wait at one level. A quarter more may wait if their callers have less than their fair share.
    Further ones are refused with RESOURCE_EXHAUSTED."""
    max_rows: Number = 128
    """Most hypotheses that a level decodes at the same time."""
    max_tokens: Number = MAX_TOKENS
    """Bounds the memory of caches: hypotheses decoded at the same time × positions that the longest of their texts may
    need. A text that needs more is decoded alone."""
    max_texts: Number = 1024
    """Largest number of texts in a Translate or Score call."""
    stream_window: Number = 256
    """Most texts of one stream under way. The stream is read further when one of them is answered."""

    auto_pending: Annotated[Number, "N"] = 64
    """`auto` leaves a level with this many texts queued or running, and takes one with fewer heads. An interactive call
    (of at most 32 texts) counts interactive texts only, because it goes before all others."""
    auto_target_ms: Annotated[float | None, POSITIVE, "MS"] = None
    """`auto` leaves a level whose 95th percentile of queue + compute is above this many milliseconds, or will be with
    the texts that wait. A call of many sentences counts as one of them alone. Streams do not count. Default: latency is
    not considered."""

    tls_cert: Annotated[Path | None, "FILE"] = None
    """PEM file of the certificate chain. With it and `tls_key`, the server accepts TLS connections only. Read again
    when it changes."""
    tls_key: Annotated[Path | None, "FILE"] = None
    """PEM file of the private key, without a passphrase."""
    tls_client_ca: Annotated[Path | None, "FILE"] = None
    """PEM file of the authorities of client certificates. With it, every connection must show such a certificate
    (mutual TLS)."""
    token: str | None = Field(default=None, repr=False)
    """If set, every call except health checks needs the metadata `authorization: Bearer TOKEN`, this one or one of
    `tokens`. It opens everything. Set it in the environment: other users can see command lines."""
    tokens: Annotated[Path | None, "FILE"] = None
    """TOML or JSON file of hashed tokens with names, scopes and limits; `hmc token new` writes its lines. Read again
    when it changes."""
    admin_address: Annotated[str | None, "ADDRESS"] = None
    """Serve AdminService only here: HOST:PORT, or unix:PATH. Default: beside TranslationService."""
    bundle_root: Annotated[Path | None, "DIR"] = None
    """Folder below which the bundles of reloads must lie. Default: the folder that holds the served bundle."""

    max_connections: Number = 1024
    """Most connections at a time, to each of the gRPC and HTTP ports; further ones are closed at once. Fewer, with a
    warning, where this process may not open so many files (`ulimit -n`; the soft limit is raised)."""
    max_streams: Number = 1024
    """Most calls at a time on one connection; the client holds back further ones."""
    max_message_mib: Annotated[int, Field(ge=1, le=64)] = 64
    """Largest request, in MiB."""
    max_metadata_kib: Number = 16
    """Largest metadata (headers) of a call, in KiB."""
    connection_age_seconds: NonNegativeFloat = 3600.0
    """A connection that is so old takes no further calls, and the client opens another. Running calls are finished.
    So a new certificate reaches everybody, and calls reach new servers. 0: no limit."""
    connection_grace_seconds: NonNegativeFloat = 0.0
    """Seconds that running calls of a connection have left when it has reached its age; then they fail with
    UNAVAILABLE. 0: no limit."""
    connection_idle_seconds: NonNegativeFloat = 900.0
    """A connection without a call for so long is closed; the client opens another when it calls. 0: no limit."""

    @model_validator(mode="after")
    def _check(self) -> ServerSettings:
        from hmc.engine.runtime.device import parse_devices
        from hmc.engine.runtime.memory.account import parse_budget

        if self.levels is not None and not self.levels:
            raise InvalidRequestError("levels: name at least one, or give all")
        if self.idle_unload is not None and not self.lazy:
            raise InvalidRequestError("idle_unload needs lazy: without it no request would load the level again")
        self.of_hosts()
        parse_devices(self.device)
        if self.gpu_memory is not None:
            parse_budget(self.gpu_memory)
        self._check_access()
        return self

    def _check_access(self) -> None:
        from hmc.serving.server.access.listening import parse_listener
        from hmc.serving.server.access.tokens import read_tokens
        from hmc.serving.server.observing.traces import check_trace_url
        from hmc.serving.wire.rules import check_token
        from hmc.serving.wire.tls import check_pair, read_authorities

        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequestError("TLS needs both a certificate and a key; give both or neither")
        if self.tls_cert is not None and self.tls_key is not None:
            check_pair(self.tls_cert, self.tls_key)
        if self.tls_client_ca is not None:
            if self.tls_cert is None:
                raise InvalidRequestError("tls_client_ca: client certificates need TLS; give tls_cert and tls_key too")
            if self.http_port is not None:
                raise InvalidRequestError(
                    "tls_client_ca: the HTTP listener does not check client certificates; leave http_port out, or "
                    "put a proxy that checks them before a server of its own"
                )
            read_authorities(self.tls_client_ca)
        if self.trace_to is not None:
            check_trace_url(self.trace_to)
        if self.token is not None:
            check_token(self.token)
        if self.tokens is not None:
            read_tokens(self.tokens)
        if self.admin_address is not None:
            parse_listener(self.admin_address)

    def fronts_here(self) -> int:
        """How many fronts to start: as set, or by the cores that this process may use."""
        from hmc.engine.runtime.threads import cores

        if self.fronts is not None:
            return self.fronts
        return 0 if cores() == 1 else min(MOST_FRONTS, max(1, cores() // CORES_OF_A_FRONT))

    def of_hosts(self) -> HostSettings:
        """The settings that hosts need. Raises InvalidRequestError if `memory` is no number of bytes."""
        from hmc.engine.runtime.memory.account import parse_budget
        from hmc.engine.runtime.packed_weights import cache_folder
        from hmc.serving.levels.controller import AutoPolicy
        from hmc.serving.levels.models import HostSettings

        memory = None if self.memory is None else parse_budget(self.memory, "memory").size
        if memory is None and self.memory is not None:
            raise InvalidRequestError(f"memory {self.memory!r}: write bytes, such as 8GiB, 500MB or 1000000000")
        auto = AutoPolicy(self.auto_pending, self.auto_target_ms)
        shared = cache_folder(self.cache) is not None
        return HostSettings(self.levels, self.default_level, self.device, self.lazy, auto, memory, shared)


class ServeSettings(ServerSettings):
    """What a file or the environment may say to `hmc serve`: how to serve, and what."""

    bundles: Names = ()
    """What to serve: directories that `hmc compile` wrote, each with the name of its model, as in en-de=BUNDLE."""
