"""What the service answers, as plain data: the server makes these before it speaks gRPC, the client returns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from hmc.artifact.bundle import Latency, Level, Quality
from hmc.artifact.errors import HmcError
from hmc.serving.latency import LatencySummary
from hmc.serving.loaded import HostStatus, LevelStatus
from hmc.serving.results import Translation
from hmc.serving.shares import Shares


@dataclass(frozen=True)
class Answer(Sequence[Translation]):
    """The translations of one call, in the order of its texts; a sequence of them."""

    translations: tuple[Translation, ...]
    level: str
    """The level that served the call."""
    bundle_version: str
    queue_ms: float
    """Milliseconds from the arrival of the call to the first computation for it."""
    compute_ms: float
    """Milliseconds from then to its last token."""

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
    """The answer to one text of a stream: either `translation` or `error` is set."""

    index: int
    """The text's place in the stream, from 0."""
    translation: Translation | None = None
    error: HmcError | None = None
    level: str = ""
    """The level that served the text; empty if the error came before one was chosen."""
    bundle_version: str = ""

    def result(self) -> Translation:
        """The translation; raises the error if there is none."""
        if self.translation is None:
            raise self.error or HmcError(f"text {self.index} was answered with neither a translation nor an error")
        return self.translation


@dataclass(frozen=True)
class LevelInfo:
    """A level as the service lists it."""

    name: str
    heads: int
    """Open heads over all kinds and layers."""
    heads_by_kind: dict[str, list[int]]
    """Open heads of each kind (`encoder_self`, `decoder_self`, `cross`), layer by layer."""
    precision: str
    parameters: int
    bytes: int
    """Bytes of the level's graphs and weights on disk, shared weights counted."""
    loaded: bool = False
    is_default: bool = False
    quality: Quality | None = None
    latency: LatencySummary | None = None
    """Measured on the server since the level was loaded."""
    recorded_latency: Latency | None = None
    """Measured by a benchmark and recorded in the bundle."""
    disk: Shares | None = None
    """`bytes`, told apart among the levels of the bundle; None where that is not known."""
    memory: Shares | None = None
    """Bytes of weights that the level holds in memory, told apart among the loaded levels; None if it is not loaded."""
    shortlist: bool = False
    """Whether it chooses among the tokens of vocabulary shortlists."""

    @classmethod
    def of(
        cls, level: Level, status: LevelStatus | None = None, *, is_default: bool = False, disk: Shares | None = None
    ) -> LevelInfo:
        """A level of a manifest; with the `status` of a host that serves it."""
        return cls(
            name=level.name,
            heads=level.heads,
            heads_by_kind=level.layout.counts(),
            precision=level.precision,
            parameters=level.parameters,
            bytes=level.bytes,
            loaded=status.loaded if status else False,
            is_default=status.is_default if status else is_default,
            quality=level.quality,
            latency=status.latency if status else None,
            recorded_latency=level.latency,
            disk=status.disk if status else disk,
            memory=status.memory if status else None,
            shortlist=level.shortlist is not None,
        )


@dataclass(frozen=True)
class LevelList:
    """The levels of a bundle, from the best to the cheapest."""

    levels: tuple[LevelInfo, ...]
    bundle_version: str
    source_language: str
    target_language: str
    device: str = ""
    """Where the levels run, "cpu" or "cuda:0"; empty for a bundle that nothing serves."""
    memory_bytes: int = 0
    """Memory of the process that serves them, all of it; 0 where that is not known."""

    @classmethod
    def of(cls, status: HostStatus, memory_bytes: int = 0) -> LevelList:
        """The levels that a host serves."""
        manifest = status.manifest
        levels = tuple(LevelInfo.of(x.level, x) for x in status.levels)
        languages = manifest.source_language, manifest.target_language
        return cls(levels, manifest.version, *languages, status.device, memory_bytes)
