"""What a host reports about its levels and its model, to callers of the service and to metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hmc.artifact.bundle.manifest import Manifest
from hmc.artifact.bundle.order import Standing
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import LevelWork
from hmc.serving.levels.byte_shares import byte_shares
from hmc.serving.levels.languages import Languages
from hmc.serving.levels.slots import LoadedBundle, Slot
from hmc.serving.requests.results import LevelInfo, LevelList, LevelLoad, ModelInfo


@dataclass(frozen=True)
class LevelStatus(LevelInfo):
    """A level of the served bundle at one moment: its description for callers, and its work."""

    pending: int = 0
    """Texts queued or running."""
    work: LevelWork = field(default_factory=LevelWork)
    """What it has computed since it was loaded. Nothing if it is not loaded."""

    @classmethod
    def read(cls, bundle: LoadedBundle, slots: Mapping[str, Slot], standing: Standing) -> LevelStatus:
        """Reads the status of a level. slots: a copy of `bundle.slots`, which may change meanwhile."""
        level = standing.level
        described = cls.of(standing, is_default=level.name == bundle.default, disk=bundle.disk[level.name])
        slot = slots.get(level.name)
        if slot is None:
            return described
        translator = slot.translator
        memory = byte_shares({name: other.translator.weights for name, other in slots.items()})
        on_devices = byte_shares({name: other.translator.device_bytes for name, other in slots.items()})
        return replace(
            described,
            loaded=True,
            latency=slot.latency.summary(),
            memory=memory[level.name],
            failure=translator.failure or "",
            device_memory=on_devices[level.name] if translator.device_use else None,
            device=translator.device,
            pending=translator.pending,
            work=translator.work,
        )


@dataclass(frozen=True)
class HostStatus:
    """The served bundle at one moment."""

    manifest: Manifest
    path: Path
    device: str
    """Where its levels run: `cpu` or `cuda:0`; several names, separated by commas, if they run on several devices."""
    levels: tuple[LevelStatus, ...]
    """All levels of the bundle, loaded or not, in their order (`hmc.artifact.bundle.order`)."""
    model: str
    """The name of the model."""
    languages: Languages
    devices: tuple[DeviceUse, ...] = ()
    """The CUDA devices that loaded levels use."""

    def listed(self, memory_bytes: int = 0) -> LevelList:
        """The levels as callers of the service see them. memory_bytes: memory of this process."""
        languages = self.manifest.source_language, self.manifest.target_language
        return LevelList(self.levels, self.manifest.version, *languages, self.device, memory_bytes, self.devices)

    def loads(self) -> list[LevelLoad]:
        """What the loaded levels do now."""
        return [
            LevelLoad(
                self.model, level.name, level.work.waiting, level.work.queue_size, level.work.workers,
                level.work.max_rows, level.work.batches, level.memory, level.device_memory, level.failure,
            )
            for level in self.levels
            if level.loaded
        ]  # fmt: skip

    def info(self) -> ModelInfo:
        """The model as callers of the service see it."""
        loaded = sum(level.loaded for level in self.levels)
        return ModelInfo(self.model, self.languages.source, self.languages.targets, self.manifest.version, loaded)
