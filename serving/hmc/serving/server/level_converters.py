"""Between `hmc.v1` messages and what is said of levels, both ways. Server and client use the same ones."""

from __future__ import annotations

from hmc.artifact.bundle import Latency, Quality
from hmc.serving.answers import LevelInfo, LevelList
from hmc.serving.latency import LatencySummary
from hmc.serving.shares import Shares
from hmc.v1 import translation_pb2 as pb

KIND_OF_NAME = {"encoder_self": pb.ENCODER_SELF, "decoder_self": pb.DECODER_SELF, "cross": pb.CROSS}
NAME_OF_KIND = {number: name for name, number in KIND_OF_NAME.items()}
QUALITY_FIELDS = tuple(Quality.model_fields)
RECORDED_FIELDS = tuple(Latency.model_fields)
WINDOW_FIELDS = ("p50_ms", "p95_ms", "p99_ms", "requests")


def level_to_proto(info: LevelInfo) -> pb.Level:
    """A level as ListLevels has it."""
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
        quality=pb.Quality(**info.quality.model_dump()) if info.quality else None,
        latency=pb.Latency(**{k: getattr(info.latency, k) for k in WINDOW_FIELDS}) if info.latency else None,
        recorded_latency=pb.RecordedLatency(**info.recorded_latency.model_dump()) if info.recorded_latency else None,
        disk=_shares_to_proto(info.disk),
        memory=_shares_to_proto(info.memory),
        shortlist=info.shortlist,
    )


def _shares_to_proto(shares: Shares | None) -> pb.LevelBytes | None:
    return pb.LevelBytes(own=shares.own, shared=shares.shared) if shares else None


def level_from_proto(message: pb.Level) -> LevelInfo:
    """The inverse of `level_to_proto`."""
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
        disk=Shares(message.disk.own, message.disk.shared) if message.HasField("disk") else None,
        memory=Shares(message.memory.own, message.memory.shared) if message.HasField("memory") else None,
        shortlist=message.shortlist,
    )


def levels_to_proto(levels: LevelList) -> pb.ListLevelsResponse:
    """The answer to ListLevels."""
    return pb.ListLevelsResponse(
        levels=[level_to_proto(level) for level in levels.levels],
        bundle_version=levels.bundle_version,
        source_language=levels.source_language,
        target_language=levels.target_language,
        device=levels.device,
        memory_bytes=levels.memory_bytes,
    )


def levels_from_proto(message: pb.ListLevelsResponse) -> LevelList:
    """The inverse of `levels_to_proto`."""
    levels = tuple(level_from_proto(level) for level in message.levels)
    languages = message.source_language, message.target_language
    return LevelList(levels, message.bundle_version, *languages, message.device, message.memory_bytes)
