"""What a host reports about its levels, and how that becomes the answer to a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hmc.artifact.bundle.manifest import Level, Manifest
from hmc.serving.levels.byte_shares import byte_shares
from hmc.serving.levels.languages import Languages
from hmc.serving.levels.slots import LoadedBundle, Slot
from hmc.serving.requests.results import DeviceUse, LatencySummary, LevelBytes, LevelInfo, LevelList, ModelInfo
from hmc.serving.requests.work import LevelWork


@dataclass(frozen=True)
class LevelStatus:
    """A level of the served bundle at one moment."""

    level: Level
    loaded: bool
    is_default: bool
    pending: int
    """Texts queued or running."""
    latency: LatencySummary | None
    """Of interactive texts, measured since the level was loaded. None before the first one."""
    disk: LevelBytes
    """Bytes of its files, split among all levels of the bundle."""
    memory: LevelBytes | None
    """Bytes of its weights in memory, split among all loaded levels. None if it is not loaded."""
    failure: str | None = None
    """Why it stopped unexpectedly. None if it did not, or if it has answered a text since."""
    device_memory: LevelBytes | None = None
    """Bytes of its weights and caches in the memory of CUDA devices, split among all loaded levels. None if it is not
    loaded or runs on a CPU."""
    device: str = ""
    """Where it runs; several names, with commas, for replicas. Empty if it is not loaded."""
    work: LevelWork = field(default_factory=LevelWork)
    """What it has computed since it was loaded. Nothing if it is not loaded."""

    @classmethod
    def of(cls, bundle: LoadedBundle, slots: Mapping[str, Slot], level: Level) -> LevelStatus:
        """Reads the status of a level. slots: a copy of `bundle.slots`, which may change meanwhile."""
        slot, is_default, disk = slots.get(level.name), level.name == bundle.default, bundle.disk[level.name]
        if slot is None:
            return cls(level, False, is_default, 0, None, disk, None)
        memory = byte_shares({name: other.translator.weights for name, other in slots.items()})[level.name]
        on_devices = byte_shares({name: other.translator.device_bytes for name, other in slots.items()})[level.name]
        translator = slot.translator
        return cls(
            level, True, is_default, translator.pending, slot.latency.summary(), disk, memory, translator.failure,
            on_devices if translator.device_use else None, translator.device, translator.work,
        )  # fmt: skip

    def info(self) -> LevelInfo:
        """The level as callers of the service see it."""
        described = LevelInfo.of(self.level, is_default=self.is_default, disk=self.disk)
        return replace(
            described,
            loaded=self.loaded,
            latency=self.latency,
            memory=self.memory,
            failure=self.failure or "",
            device_memory=self.device_memory,
            device=self.device,
        )


@dataclass(frozen=True)
class HostStatus:
    """The served bundle at one moment."""

    manifest: Manifest
    path: Path
    device: str
    """Where its levels run: `cpu` or `cuda:0`; several names, separated by commas, if they run on several devices."""
    levels: tuple[LevelStatus, ...]
    """All levels of the bundle, loaded or not, from the best to the cheapest."""
    model: str
    """The name of the model."""
    languages: Languages
    devices: tuple[DeviceUse, ...] = ()
    """The CUDA devices that loaded levels use."""

    def listed(self, memory_bytes: int = 0) -> LevelList:
        """The levels as callers of the service see them. memory_bytes: memory of this process."""
        levels = tuple(status.info() for status in self.levels)
        languages = self.manifest.source_language, self.manifest.target_language
        return LevelList(levels, self.manifest.version, *languages, self.device, memory_bytes, self.devices)

    def info(self) -> ModelInfo:
        """The model as callers of the service see it."""
        loaded = sum(level.loaded for level in self.levels)
        return ModelInfo(self.model, self.languages.source, self.languages.targets, self.manifest.version, loaded)
