"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.options import MAX_TOKENS
from hmc.engine.runtime.device import SDPA_KERNELS, CudaAttention, parse_devices
from hmc.engine.runtime.memory.account import parse_budget
from hmc.engine.runtime.packed_weights import cache_folder
from hmc.engine.runtime.threads import cores
from hmc.engine.support import EXECUTORS, AnyExecutor
from hmc.serving.levels.controller import AutoPolicy
from hmc.serving.levels.models import HostSettings
from hmc.serving.server.access.listening import parse_listener
from hmc.serving.server.access.tokens import read_tokens
from hmc.serving.server.observing.traces import check_trace_url
from hmc.serving.wire.rules import MAX_MESSAGE_BYTES, check_token
from hmc.serving.wire.tls import check_pair, read_authorities

LogFormat = Literal["text", "json"]
POSITIVE = (
    "max_texts_per_call", "queue_size", "max_rows", "max_tokens", "stream_window",
    "max_connections", "max_streams", "max_message_mib", "max_metadata_kib",
)  # fmt: skip
"""Settings that must be 1 or more."""
NOT_NEGATIVE = (
    "threads", "workers", "drain_seconds", "connection_age_seconds", "connection_grace_seconds",
    "connection_idle_seconds",
)  # fmt: skip
"""Settings that must be 0 or more."""

MOST_FRONTS = 64
CORES_OF_A_FRONT = 4
"""A front for so many cores, where nobody says how many: one carries the calls of about so many cores of work."""


@dataclass(frozen=True)
class ServerSettings:
    """How to serve. Raises InvalidRequestError if a value is out of range, and if a file for TLS or of tokens cannot be
    used."""

    host: str = "127.0.0.1"
    """Address to listen on. "0.0.0.0" and "::" listen on every address of the machine."""
    port: int = 50051
    """Port to listen on; 0 takes any free one."""
    device: str = "auto"
    """Where levels run: "auto", "cpu", "cuda", "cuda:N", or several such as "cuda:0,cuda:1". Each of several gets a
    replica of every level."""
    gpu_memory: str | None = None
    """The most memory that the levels of this process may reserve on each CUDA device for weights and caches: "8GiB",
    "500MB", bytes, or a share of what was free at first, such as "80%". None: 80%."""
    gpu_attention: CudaAttention = "plain"
    """How CUDA computes attention: "plain", "efficient" or "cudnn"."""
    executor: AnyExecutor = "auto"
    """What runs the levels: "onnxruntime", their graphs; "native", their step programs in C; "reference", the same in
    NumPy, to compare with; or "auto", the native executor for int8 levels on a CPU and ONNX Runtime for all others."""
    levels: tuple[str, ...] | None = None
    """Levels to load at the start, besides the default level. None: all levels that run on the device."""
    default_level: str | None = None
    """Level that serves requests which choose none. None: the bundle's default level."""
    lazy: bool = False
    """Load levels when a request first chooses them."""
    memory: str | None = None
    """The most memory of this machine that the weights of all levels may take together: "4GiB", "500MB" or bytes. With
    `lazy`, idle levels are unloaded for new ones. None: any number."""
    idle_unload: float | None = None
    """Seconds after which a level that no request uses is unloaded; only with `lazy`. None: never."""
    auto: AutoPolicy = field(default_factory=AutoPolicy)
    """When `auto` passes over a level."""
    max_texts_per_call: int = 1024
    """Largest number of texts in a Translate or Score call."""
    queue_size: int = 1024
    """Sentences that may wait at a level, and a quarter more of callers that have less than their part; others are
    refused with RESOURCE_EXHAUSTED."""
    max_rows: int = 128
    """Most hypotheses that a level decodes at the same time."""
    max_tokens: int = MAX_TOKENS
    """Bounds the memory of caches: hypotheses decoded at the same time × positions that the longest of their texts may
    need. A text that needs more is decoded alone."""
    stream_window: int = 256
    """Most texts of one stream under way. The stream is read further when one of them is answered."""
    threads: int = 0
    """Threads of each worker of a level. 0: as measured if `workers` is 0 too; one for each physical core that this
    process may use if there is one worker; a single one if there are several."""
    workers: int = 0
    """Batches that a level runs at the same time. More than one raises the throughput on a CPU. 0: as measured on this
    machine, or one if `threads` are given."""
    fronts: int | None = None
    """Processes that share the port and have gRPC, HTTP and texts, beside one process with the levels. 0: one process
    does everything. None: 0 on a single core, 1 on up to seven, and one for every four cores from there. Each front has
    its own queues; rates of tokens hold for all fronts together."""
    cache: str | Path = "auto"
    """Folder of weights that are packed for this machine's processor; levels and processes map them and share the
    memory. "auto": HMC_CACHE, or the platform's folder for caches. "none", and a folder that cannot be written: every
    level has a copy of its own in memory. Files of the bundle itself are never mapped."""
    drain_seconds: float = 30.0
    """Seconds in which running calls can finish when the server stops."""
    tls_cert: Path | None = None
    """PEM file of the certificate chain. With it and `tls_key`, the server accepts TLS connections only."""
    tls_key: Path | None = None
    """PEM file of the private key, without a passphrase."""
    tls_client_ca: Path | None = None
    """PEM file of the authorities of client certificates. With it, every connection must show such a certificate."""
    token: str | None = field(default=None, repr=False)
    """If set, every call except health checks needs the metadata `authorization: Bearer TOKEN`, this one or one of
    `tokens`. It opens everything."""
    tokens: Path | None = None
    """TOML or JSON file of hashed tokens with names, scopes and limits. It is read again when it changes."""
    admin_address: str | None = None
    """`HOST:PORT` or `unix:PATH` for AdminService, which is then not served elsewhere. None: it is served beside
    TranslationService."""
    bundle_root: Path | None = None
    """Folder below which the bundles of reloads must lie. None: the folder that holds the served bundle."""
    watch: float | None = None
    """Seconds between two looks at the paths of the bundles. A new version that is put there is loaded and replaces the
    old one, as by Reload. None: no looks."""
    max_connections: int = 1024
    """Most connections at a time, to each of the gRPC and HTTP ports; further ones are closed at once. Fewer, with a
    warning, where this process may not open so many files (`ulimit -n`; the soft limit is raised)."""
    max_streams: int = 1024
    """Most calls at a time on one connection; the client holds back further ones."""
    max_message_mib: int = 64
    """Largest request, in MiB."""
    max_metadata_kib: int = 16
    """Largest metadata (headers) of a call, in KiB."""
    connection_age_seconds: float = 3600.0
    """A connection that is so old takes no further calls, and the client opens another. Running calls are finished.
    So a new certificate reaches everybody, and calls reach new servers. 0: no limit."""
    connection_grace_seconds: float = 0.0
    """Seconds that running calls of a connection have left when it has reached its age; then they fail with
    UNAVAILABLE. 0: no limit."""
    connection_idle_seconds: float = 900.0
    """A connection without a call for so long is closed; the client opens another when it calls. 0: no limit."""
    metrics_port: int | None = None
    """Port of Prometheus metrics on the same host; 0 takes any free one. None: no metrics."""
    http_port: int | None = None
    """Port of the HTTP listener on the same host; 0 takes any free one. None: no HTTP."""
    trace_to: str | None = None
    """URL of an OpenTelemetry collector (OTLP over HTTP), such as http://localhost:4318. It gets a span of every call.
    Needs the extra `tracing`. None: no spans."""
    log_format: LogFormat = "text"
    """How the server logs: "text", or "json" with an object a line."""
    log_calls: bool = False
    """Log a line for every call that ends: its name, status, time, caller and request id."""
    log_texts: bool = False
    """Let texts appear in the log: those of every call, and what unexpected errors quote. Off, no text is logged."""

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port", "http_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise InvalidRequestError(f"{name} {value}: choose 0 to 65535")
        for name in POSITIVE:
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 1 or more")
        for name in NOT_NEGATIVE:
            if not getattr(self, name) >= 0:  # also refuses NaN
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 0 or more")
        if self.fronts is not None and not 0 <= self.fronts <= MOST_FRONTS:
            raise InvalidRequestError(f"fronts {self.fronts}: choose 0 to {MOST_FRONTS}")
        self._check_levels()
        self._check_devices()
        self._check_security()

    def _check_security(self) -> None:
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
        if self.max_message_mib > MAX_MESSAGE_BYTES // 2**20:
            raise InvalidRequestError(f"max_message_mib {self.max_message_mib}: choose 1 to {MAX_MESSAGE_BYTES >> 20}")
        if self.log_format not in get_args(LogFormat):
            raise InvalidRequestError(f"log_format {self.log_format!r}: choose {', '.join(get_args(LogFormat))}")

    def _check_levels(self) -> None:
        if self.levels is not None and not self.levels:
            raise InvalidRequestError("levels: name at least one, or give all")
        if self.idle_unload is not None and not self.idle_unload > 0:
            raise InvalidRequestError(f"idle_unload {self.idle_unload}: choose more than 0 seconds")
        if self.idle_unload is not None and not self.lazy:
            raise InvalidRequestError("idle_unload needs lazy: without it no request would load the level again")
        if self.watch is not None and not 0 < self.watch < float("inf"):
            raise InvalidRequestError(f"watch {self.watch}: choose more than 0 seconds")
        self.of_hosts()

    def _check_devices(self) -> None:
        parse_devices(self.device)
        if self.gpu_memory is not None:
            parse_budget(self.gpu_memory)
        if self.gpu_attention not in SDPA_KERNELS:
            raise InvalidRequestError(f"gpu_attention {self.gpu_attention!r}: choose {', '.join(SDPA_KERNELS)}")
        if self.executor not in ("auto", *EXECUTORS):
            raise InvalidRequestError(f"executor {self.executor!r}: choose auto, {', '.join(EXECUTORS)}")

    def fronts_here(self) -> int:
        """How many fronts to start: as set, or by the cores that this process may use."""
        if self.fronts is not None:
            return self.fronts
        return 0 if cores() == 1 else min(MOST_FRONTS, max(1, cores() // CORES_OF_A_FRONT))

    def of_hosts(self) -> HostSettings:
        """The settings that hosts need. Raises InvalidRequestError if `memory` is no number of bytes."""
        memory = None if self.memory is None else parse_budget(self.memory, "memory").size
        if memory is None and self.memory is not None:
            raise InvalidRequestError(f"memory {self.memory!r}: write bytes, such as 8GiB, 500MB or 1000000000")
        shared = cache_folder(self.cache) is not None
        return HostSettings(self.levels, self.default_level, self.device, self.lazy, self.auto, memory, shared)
