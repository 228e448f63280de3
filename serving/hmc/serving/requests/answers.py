"""The answers of the service as plain data. The server builds them, converts them to messages, and the client returns
them to its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, overload

from hmc.artifact.bundle.manifest import Latency, Level, Quality
from hmc.artifact.errors import HmcError
from hmc.serving.requests.results import Translation


@dataclass(frozen=True)
class Answer(Sequence[Translation]):
    """The answer to one call. It is a sequence of the translations, in the order of the texts."""

    translations: tuple[Translation, ...]
    level: str
    """Name of the level that served the call."""
    bundle_version: str
    queue_ms: float
    """Milliseconds from the arrival of the call to the first computation for it."""
    compute_ms: float
    """Milliseconds from the first computation for the call to its last token."""

    @overload
    def __getitem__(self, index: int) -> Translation: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Translation]: ...

    def __getitem__(self, index: int | slice) -> Translation | Sequence[Translation]:
        return self.translations[index]

    def __len__(self) -> int:
        return len(self.translations)


@dataclass(frozen=True)
class StreamAnswer:
    """The answer to one text of a stream: exactly one of `translation` and `error` is set."""

    index: int
    """Position of the text in the stream, from 0."""
    translation: Translation | None = None
    error: HmcError | None = None
    level: str = ""
    """Name of the level that served the text. Empty if the text failed before a level was chosen."""
    bundle_version: str = ""

    def result(self) -> Translation:
        """Returns the translation. Raises `error` if there is none."""
        if self.translation is None:
            raise self.error or HmcError(f"text {self.index} was answered with neither a translation nor an error")
        return self.translation


@dataclass(frozen=True)
class LatencySummary:
    """Percentiles of queueing and computing time together, in milliseconds."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    """Requests over which the percentiles are taken."""


@dataclass(frozen=True)
class LevelBytes:
    """Bytes of one level, split by whether another level holds the same files."""

    own: int
    """Bytes of files that no other level holds."""
    shared: int
    """Bytes of files that at least one other level holds too."""


@dataclass(frozen=True)
class DeviceUse:
    """The memory of one device, as a server uses it."""

    device: str
    """Such as `cuda:0`."""
    reserved: int
    """Bytes that weights and caches of all levels of the server have."""
    budget: int
    """The most bytes that they may have. 0 if there is no known limit."""
    free: int
    """Bytes of the device that no process uses. 0 if unknown."""


@dataclass(frozen=True)
class LevelInfo:
    """One level, as a bundle describes it and as a server reports it."""

    name: str
    heads: int
    """Open heads over all kinds and layers."""
    heads_by_kind: dict[str, list[int]]
    """Kind (`encoder_self`, `decoder_self`, `cross`) → open heads in each layer, first layer first."""
    precision: str
    parameters: int
    """Weights in the level's graphs; those of closed heads are not counted."""
    bytes: int
    """Bytes of the level's graphs and weights on disk. Weights that levels share count for each of them."""
    loaded: bool = False
    is_default: bool = False
    quality: Quality | None = None
    """Scores on a test set from compile time; None if they were not measured."""
    latency: LatencySummary | None = None
    """Measured by the server since it loaded the level. None before the first measured request."""
    recorded_latency: Latency | None = None
    """Measured by a benchmark and recorded in the bundle. None if it was not measured."""
    disk: LevelBytes | None = None
    """`bytes`, split among the levels of the bundle. None if unknown."""
    memory: LevelBytes | None = None
    """Bytes of weights in the server's memory, split among the loaded levels. None if the level is not loaded."""
    shortlist: bool = False
    """Whether the level chooses each token from a vocabulary shortlist of the text."""
    failure: str = ""
    """Why the level stopped unexpectedly. Empty if it did not, or if it has answered a text since."""
    device_memory: LevelBytes | None = None
    """Bytes of weights and caches in the memory of CUDA devices, split among the loaded levels. None if the level is
    not loaded or runs on a CPU."""
    device: str = ""
    """Where the level runs: `cpu`, `cuda:0`, or its replicas' devices such as `cuda:0,cuda:1`. Empty if it is not
    loaded."""

    @classmethod
    def of(cls, level: Level, *, is_default: bool = False, disk: LevelBytes | None = None) -> Self:
        """Describes a level of a manifest that no server has loaded."""
        return cls(
            name=level.name,
            heads=level.heads,
            heads_by_kind=level.layout.counts(),
            precision=level.precision,
            parameters=level.parameters,
            bytes=level.bytes,
            is_default=is_default,
            quality=level.quality,
            recorded_latency=level.latency,
            disk=disk,
            shortlist=level.shortlist is not None,
        )


@dataclass(frozen=True)
class ModelInfo:
    """One model of a server: a bundle with a name."""

    name: str
    source_language: str
    """A BCP 47 tag such as `en`."""
    target_languages: tuple[str, ...]
    """Several, if the texts of the model begin with a target token."""
    bundle_version: str
    loaded_levels: int
    """Levels of it that are loaded."""


@dataclass(frozen=True)
class LevelList:
    """The levels of a bundle, from the best to the cheapest."""

    levels: tuple[LevelInfo, ...]
    bundle_version: str
    source_language: str
    target_language: str
    """Languages are BCP 47 tags such as `en`."""
    device: str = ""
    """Where the levels run: `cpu` or `cuda:0`. Empty for a bundle that no server has loaded."""
    memory_bytes: int = 0
    """Bytes of memory that the server's process uses for everything. 0 if unknown."""
    devices: tuple[DeviceUse, ...] = ()
    """The CUDA devices that loaded levels use."""
