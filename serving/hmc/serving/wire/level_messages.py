"""Converts descriptions of levels and models to `hmc.v1` messages and back. Server and client share these functions."""

from __future__ import annotations

from collections.abc import Sequence

from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.serving.requests.results import DeviceUse, LatencySummary, LevelBytes, LevelInfo, LevelList, ModelInfo
from hmc.v1 import translation_pb2 as pb

KIND_OF_NAME = {
    "encoder_self": pb.HEAD_KIND_ENCODER_SELF,
    "decoder_self": pb.HEAD_KIND_DECODER_SELF,
    "cross": pb.HEAD_KIND_CROSS,
}
NAME_OF_KIND = {number: name for name, number in KIND_OF_NAME.items()}
QUALITY_FIELDS = tuple(pb.Quality.DESCRIPTOR.fields_by_name)
RECORDED_FIELDS = tuple(pb.RecordedLatency.DESCRIPTOR.fields_by_name)
WINDOW_FIELDS = ("p50_ms", "p95_ms", "p99_ms", "requests")
DEVICE_FIELDS = tuple(pb.DeviceUse.DESCRIPTOR.fields_by_name)


def level_to_proto(info: LevelInfo) -> pb.Level:
    """Converts the description of one level."""
    kinds = [pb.KindHeads(kind=KIND_OF_NAME[k], heads_per_layer=rows) for k, rows in info.heads_by_kind.items()]
    return pb.Level(
        name=info.name,
        heads=info.heads,
        heads_by_kind=kinds,
        precision=info.precision,
        parameters=info.parameters,
        bytes=info.bytes,
        loaded=info.loaded,
        is_default=info.is_default,
        quality=pb.Quality(**{k: getattr(info.quality, k) for k in QUALITY_FIELDS}) if info.quality else None,
        latency=pb.Latency(**{k: getattr(info.latency, k) for k in WINDOW_FIELDS}) if info.latency else None,
        recorded_latency=pb.RecordedLatency(**{k: getattr(info.recorded_latency, k) for k in RECORDED_FIELDS})
        if info.recorded_latency
        else None,
        disk=_bytes_to_proto(info.disk),
        memory=_bytes_to_proto(info.memory),
        shortlist=info.shortlist,
        failure=info.failure,
        device_memory=_bytes_to_proto(info.device_memory),
        device=info.device,
    )


def _bytes_to_proto(split: LevelBytes | None) -> pb.LevelBytes | None:
    return pb.LevelBytes(own=split.own, shared=split.shared) if split else None


def level_from_proto(message: pb.Level) -> LevelInfo:
    """The inverse of `level_to_proto`. Kinds of heads that this version does not know are left out."""
    quality = {name: getattr(message.quality, name) for name in QUALITY_FIELDS}
    window = {name: getattr(message.latency, name) for name in WINDOW_FIELDS}
    recorded = {name: getattr(message.recorded_latency, name) for name in RECORDED_FIELDS}
    return LevelInfo(
        name=message.name,
        heads=message.heads,
        heads_by_kind={
            NAME_OF_KIND[k.kind]: list(k.heads_per_layer) for k in message.heads_by_kind if k.kind in NAME_OF_KIND
        },
        precision=message.precision,
        parameters=message.parameters,
        bytes=message.bytes,
        loaded=message.loaded,
        is_default=message.is_default,
        quality=Quality(**quality) if message.HasField("quality") else None,
        latency=LatencySummary(**window) if message.HasField("latency") else None,
        recorded_latency=Latency(**recorded) if message.HasField("recorded_latency") else None,
        disk=_bytes_from_proto(message.disk) if message.HasField("disk") else None,
        memory=_bytes_from_proto(message.memory) if message.HasField("memory") else None,
        shortlist=message.shortlist,
        failure=message.failure,
        device_memory=_bytes_from_proto(message.device_memory) if message.HasField("device_memory") else None,
        device=message.device,
    )


def _bytes_from_proto(message: pb.LevelBytes) -> LevelBytes:
    return LevelBytes(message.own, message.shared)


def levels_to_proto(levels: LevelList) -> pb.ListLevelsResponse:
    """Converts the answer to ListLevels."""
    return pb.ListLevelsResponse(
        levels=[level_to_proto(level) for level in levels.levels],
        bundle_version=levels.bundle_version,
        source_language=levels.source_language,
        target_language=levels.target_language,
        device=levels.device,
        memory_bytes=levels.memory_bytes,
        devices=[pb.DeviceUse(**{k: getattr(use, k) for k in DEVICE_FIELDS}) for use in levels.devices],
    )


def levels_from_proto(message: pb.ListLevelsResponse) -> LevelList:
    """The inverse of `levels_to_proto`."""
    levels = tuple(level_from_proto(level) for level in message.levels)
    languages = message.source_language, message.target_language
    devices = tuple(DeviceUse(**{k: getattr(use, k) for k in DEVICE_FIELDS}) for use in message.devices)
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
