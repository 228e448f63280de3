"""The settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from hmc.artifact.errors import InvalidRequestError
from hmc.serving.levels.choosing import AutoPolicy
from hmc.serving.levels.models import HostSettings
from hmc.serving.requests.options import MAX_TOKENS
from hmc.serving.runtime.device import SDPA_KERNELS, CudaAttention, parse_devices
from hmc.serving.runtime.memory.budget import parse_budget
from hmc.serving.wire.limits import check_token
from hmc.serving.wire.tls import check_pair, read_pem


@dataclass(frozen=True)
class ServerSettings:
    """How to serve. Raises InvalidRequestError if a value is out of range, and if the TLS files cannot be used."""

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
    """Most texts in one Translate or Score call."""
    queue_size: int = 1024
    """Most texts that wait at a level; further ones are refused with RESOURCE_EXHAUSTED."""
    max_rows: int = 128
    """Most hypotheses that a level decodes at the same time."""
    max_tokens: int = MAX_TOKENS
    """Bounds the memory of caches: hypotheses decoded at the same time × positions that the longest of their texts may
    need. A text that needs more is decoded alone."""
    stream_window: int = 256
    """Most texts of one stream under way. The stream is read further when one of them is answered."""
    threads: int = 0
    """Threads of each worker of a level. 0: one for each physical core that this process may use, or a single one if
    there are several workers."""
    workers: int = 1
    """Batches that a level runs at the same time. More than one raises the throughput on a CPU."""
    cache: str | Path = "auto"
    """Folder of weights that are packed for this machine's processor; levels and processes map them and share the
    memory. "auto": HMC_CACHE, or the platform's folder for caches. "none": every level keeps its weights to itself."""
    drain_seconds: float = 30.0
    """Seconds in which running calls can finish when the server stops."""
    tls_cert: Path | None = None
    """PEM file of the certificate chain. With it and `tls_key`, the server accepts TLS connections only."""
    tls_key: Path | None = None
    """PEM file of the private key, without a passphrase."""
    token: str | None = None
    """If set, every call except health checks needs the metadata `authorization: Bearer TOKEN`."""
    metrics_port: int | None = None
    """Port of Prometheus metrics on the same host; 0 takes any free one. None: no metrics."""

    def __post_init__(self) -> None:
        for name in ("port", "metrics_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 65535:
                raise InvalidRequestError(f"{name} {value}: choose 0 to 65535")
        for name in ("max_texts_per_call", "queue_size", "max_rows", "max_tokens", "stream_window", "workers"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 1 or more")
        for name in ("threads", "drain_seconds"):
            if not getattr(self, name) >= 0:  # also refuses NaN
                raise InvalidRequestError(f"{name} {getattr(self, name)}: choose 0 or more")
        self._check_levels()
        self._check_devices()
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequestError("TLS needs both a certificate and a key; give both or neither")
        if self.tls_cert is not None and self.tls_key is not None:
            check_pair(self.tls_cert, self.tls_key)
        if self.token is not None:
            check_token(self.token)

    def _check_levels(self) -> None:
        if self.levels is not None and not self.levels:
            raise InvalidRequestError("levels: name at least one, or give all")
        if self.idle_unload is not None and not self.idle_unload > 0:
            raise InvalidRequestError(f"idle_unload {self.idle_unload}: choose more than 0 seconds")
        if self.idle_unload is not None and not self.lazy:
            raise InvalidRequestError("idle_unload needs lazy: without it no request would load the level again")
        self.of_hosts()

    def _check_devices(self) -> None:
        parse_devices(self.device)
        if self.gpu_memory is not None:
            parse_budget(self.gpu_memory)
        if self.gpu_attention not in SDPA_KERNELS:
            raise InvalidRequestError(f"gpu_attention {self.gpu_attention!r}: choose {', '.join(SDPA_KERNELS)}")

    def of_hosts(self) -> HostSettings:
        """The settings that hosts need. Raises InvalidRequestError if `memory` is no number of bytes."""
        memory = None if self.memory is None else parse_budget(self.memory, "memory").size
        if memory is None and self.memory is not None:
            raise InvalidRequestError(f"memory {self.memory!r}: write bytes, such as 8GiB, 500MB or 1000000000")
        return HostSettings(self.levels, self.default_level, self.device, self.lazy, self.auto, memory)

    def tls_pair(self) -> tuple[bytes, bytes] | None:
        """The private key and the certificate chain in PEM; None without TLS.

        Raises InvalidRequestError if a file cannot be read.
        """
        if self.tls_cert is None or self.tls_key is None:
            return None
        return read_pem(self.tls_key), read_pem(self.tls_cert)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
