"""Converts descriptions of levels and models to `hmc.v1` messages and back. Server and client share these functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.serving.requests.results import (
    DeviceUse,
    LatencySummary,
    LevelBytes,
    LevelInfo,
    LevelList,
    LevelLoad,
    ModelInfo,
    ServerStatus,
)
from hmc.serving.requests.work import BatchLoad
from hmc.v1 import translation_pb2 as pb

KIND_OF_NAME = {
    "encoder_self": pb.HEAD_KIND_ENCODER_SELF,
    "decoder_self": pb.HEAD_KIND_DECODER_SELF,
    "cross": pb.HEAD_KIND_CROSS,
}
NAME_OF_KIND = {number: name for name, number in KIND_OF_NAME.items()}
ALWAYS = tuple(field.name for field in pb.Level.DESCRIPTOR.fields if field.message_type is None)
"""The fields of a level that are always there: numbers and texts."""
MEASURED: dict[str, tuple[Any, Any]] = {
    "quality": (pb.Quality, Quality),
    "latency": (pb.Latency, LatencySummary),
    "recorded_latency": (pb.RecordedLatency, Latency),
    "disk": (pb.LevelBytes, LevelBytes),
    "memory": (pb.LevelBytes, LevelBytes),
    "device_memory": (pb.LevelBytes, LevelBytes),
}
"""Field of a level that may be missing → its kind as a message, and as plain data."""


def level_to_proto(info: LevelInfo) -> pb.Level:
    """Converts the description of one level. Fields have the same names on both sides."""
    measured = {name: (kind, getattr(info, name)) for name, (kind, _) in MEASURED.items()}
    return pb.Level(
        heads_by_kind=[pb.KindHeads(kind=KIND_OF_NAME[k], heads_per_layer=r) for k, r in info.heads_by_kind.items()],
        **{name: getattr(info, name) for name in ALWAYS},
        **{name: _to_proto(kind, data) for name, (kind, data) in measured.items() if data is not None},
    )


def level_from_proto(message: pb.Level) -> LevelInfo:
    """The inverse of `level_to_proto`. Kinds of heads that this version does not know are left out."""
    kinds = {NAME_OF_KIND[k.kind]: list(k.heads_per_layer) for k in message.heads_by_kind if k.kind in NAME_OF_KIND}
    measured = {name: kind for name, (_, kind) in MEASURED.items() if message.HasField(name)}
    return LevelInfo(
        heads_by_kind=kinds,
        **{name: getattr(message, name) for name in ALWAYS},
        **{name: _from_proto(kind, getattr(message, name)) for name, kind in measured.items()},
    )


def _to_proto(kind: Any, data: Any) -> Any:
    """A message of this kind, of plain data with fields of the same names."""
    return kind(**{name: getattr(data, name) for name in kind.DESCRIPTOR.fields_by_name})


def _from_proto(kind: Any, message: Any) -> Any:
    """The inverse of `_to_proto`: plain data of this kind."""
    return kind(**{name: getattr(message, name) for name in message.DESCRIPTOR.fields_by_name})


def levels_to_proto(levels: LevelList) -> pb.ListLevelsResponse:
    """Converts the answer to ListLevels."""
    return pb.ListLevelsResponse(
        levels=[level_to_proto(level) for level in levels.levels],
        bundle_version=levels.bundle_version,
        source_language=levels.source_language,
        target_language=levels.target_language,
        device=levels.device,
        memory_bytes=levels.memory_bytes,
        devices=[_to_proto(pb.DeviceUse, use) for use in levels.devices],
    )


def levels_from_proto(message: pb.ListLevelsResponse) -> LevelList:
    """The inverse of `levels_to_proto`."""
    levels = tuple(level_from_proto(level) for level in message.levels)
    languages = message.source_language, message.target_language
    devices = tuple(_from_proto(DeviceUse, use) for use in message.devices)
    return LevelList(levels, message.bundle_version, *languages, message.device, message.memory_bytes, devices)


def models_to_proto(models: Sequence[ModelInfo]) -> pb.ListModelsResponse:
    """Converts the answer to ListModels."""
    return pb.ListModelsResponse(
        models=[
            pb.Model(
                name=model.name,
                source_language=model.source_language,
                target_languages=model.target_languages,
                bundle_version=model.bundle_version,
                loaded_levels=model.loaded_levels,
            )
            for model in models
        ]
    )


def models_from_proto(message: pb.ListModelsResponse) -> tuple[ModelInfo, ...]:
    """The inverse of `models_to_proto`."""
    return tuple(
        ModelInfo(m.name, m.source_language, tuple(m.target_languages), m.bundle_version, m.loaded_levels)
        for m in message.models
    )


def status_to_proto(status: ServerStatus) -> pb.GetStatusResponse:
    """Converts the answer to GetStatus."""
    return pb.GetStatusResponse(
        levels=[_load_to_proto(load) for load in status.levels],
        memory_bytes=status.memory_bytes,
        devices=[_to_proto(pb.DeviceUse, use) for use in status.devices],
    )


def status_from_proto(message: pb.GetStatusResponse) -> ServerStatus:
    """The inverse of `status_to_proto`."""
    levels = tuple(_load_from_proto(load) for load in message.levels)
    return ServerStatus(levels, message.memory_bytes, tuple(_from_proto(DeviceUse, use) for use in message.devices))


LOAD_FIELDS = tuple(field.name for field in pb.LevelLoad.DESCRIPTOR.fields if field.message_type is None)
LOAD_BYTES = ("memory", "device_memory")


def _load_to_proto(load: LevelLoad) -> pb.LevelLoad:
    known = {name: _to_proto(pb.LevelBytes, data) for name in LOAD_BYTES if (data := getattr(load, name)) is not None}
    batches = [_to_proto(pb.RunningBatch, batch) for batch in load.batches]
    return pb.LevelLoad(batches=batches, **{name: getattr(load, name) for name in LOAD_FIELDS}, **known)


def _load_from_proto(message: pb.LevelLoad) -> LevelLoad:
    known = {name: _from_proto(LevelBytes, getattr(message, name)) for name in LOAD_BYTES if message.HasField(name)}
    batches = tuple(_from_proto(BatchLoad, batch) for batch in message.batches)
    return LevelLoad(batches=batches, **{name: getattr(message, name) for name in LOAD_FIELDS}, **known)
