"""Converts plain data to `hmc.v1` messages and back: requests, translations, descriptions of levels and models. Server
and client share these functions."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from hmc.artifact.bundle.manifest import Latency, Quality
from hmc.artifact.errors import HmcError, InternalServiceError, InvalidRequestError, Violation
from hmc.engine.requests.options import Sampling
from hmc.engine.requests.results import DeviceUse
from hmc.engine.requests.work import BatchLoad
from hmc.serving.requests.options import Segmentation, TextOptions
from hmc.serving.requests.results import (
    Alternative,
    Answer,
    LatencySummary,
    LevelBytes,
    LevelInfo,
    LevelList,
    LevelLoad,
    ModelInfo,
    Partial,
    Segment,
    StreamAnswer,
    Token,
    Translation,
)
from hmc.serving.requests.selectors import OF_THE_MODEL, Selector
from hmc.serving.wire.status import code_of, error_of, message_of
from hmc.v1 import translation_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")
T = TypeVar("T")
CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
PLAIN: dict[str, Any] = {
    "Alternative": Alternative,
    "DeviceUse": DeviceUse,
    "Latency": LatencySummary,
    "LevelBytes": LevelBytes,
    "LevelLoad": LevelLoad,
    "Quality": Quality,
    "RecordedLatency": Latency,
    "RunningBatch": BatchLoad,
    "Sampling": Sampling,
    "Segment": Segment,
    "Token": Token,
}
"""Kind of messages that others have inside → their class as plain data."""


def to_proto(kind: type[M], data: object, /, **fields: Any) -> M:
    """A message of this kind, of plain data with fields of the same names. None leaves a field absent.

    fields: values of fields that the data has in another form, or not at all.
    """
    return kind(**_values(kind.DESCRIPTOR, data, **fields))


def _values(descriptor: Any, data: object, /, **fields: Any) -> dict[str, Any]:
    """The fields of a message that are set; messages inside it are dicts."""
    for name, repeated, optional, inner in _fields(descriptor):
        if name in fields:
            continue
        value: Any = getattr(data, name)
        if value is None or not (value or optional):  # absent, or what an absent field means
            continue
        if inner is not None:
            value = [_values(inner, each) for each in value] if repeated else _values(inner, value)
        fields[name] = value
    return fields


def from_proto(kind: type[T], message: Message, /, **fields: Any) -> T:
    """The inverse of `to_proto`: plain data of this kind. Absent fields take their defaults.

    Raises InvalidRequestError if an option or a selector is out of range.
    """
    for name, repeated, optional, inner in _fields(message.DESCRIPTOR):
        if name not in fields and (not optional or message.HasField(name)):
            value = getattr(message, name)
            if inner is not None:
                plain = PLAIN[inner.name]
                value = [from_proto(plain, each) for each in value] if repeated else from_proto(plain, value)
            fields[name] = tuple(value) if repeated else value
    return kind(**fields)


@cache
def _fields(descriptor: Any) -> list[tuple[str, bool, bool, Any]]:
    """Of each field: its name, whether it is a list, whether it can be absent, and what messages inside it are."""
    fields = descriptor.fields
    return [(each.name, each.is_repeated, each.has_presence, each.message_type) for each in fields]


# ---- requests ----


def selector_from_proto(message: pb.LevelSelector) -> Selector:
    """Converts a selector. Raises InvalidRequestError if a value is out of range."""
    return from_proto(Selector, message, **{name: getattr(message, name) or None for name in OF_THE_MODEL})


def selector_to_proto(selector: Selector) -> pb.LevelSelector | None:
    """Converts a selector. Returns None for the default level of the first model, which is sent as an absent field."""
    if selector == Selector():
        return None
    return to_proto(pb.LevelSelector, selector, auto=selector.auto or None)


SEGMENTATIONS = {
    pb.SEGMENTATION_AUTO: Segmentation.AUTO,
    pb.SEGMENTATION_SENTENCE: Segmentation.SENTENCE,
    pb.SEGMENTATION_NONE: Segmentation.NONE,
}


DEFAULT_TEXTS = TextOptions()


def text_options_from_proto(message: pb.TranslateRequest | pb.TranslateDocumentRequest) -> TextOptions:
    """How the texts of a request are divided. Raises InvalidRequestError if a value is out of range."""
    document = isinstance(message, pb.TranslateDocumentRequest)
    default = Segmentation.SENTENCE if document else Segmentation.AUTO
    segmentation = message.segmentation
    if segmentation and segmentation not in SEGMENTATIONS:
        raise InvalidRequestError(f"segmentation {segmentation}: choose {', '.join(pb.Segmentation.keys()[1:])}")
    segments = message.return_segments if isinstance(message, pb.TranslateRequest) else False
    if not (document or segmentation or segments or message.keep):
        return DEFAULT_TEXTS
    return TextOptions(SEGMENTATIONS.get(segmentation, default), segments, tuple(message.keep))


def segmentation_to_proto(segmentation: Segmentation) -> pb.Segmentation:
    """Converts a segmentation."""
    return next(number for number, each in SEGMENTATIONS.items() if each is segmentation)


# ---- translations ----


def answer_from_proto(message: pb.TranslateResponse | pb.ScoreResponse) -> Answer:
    """Converts the answer to a call. Each translation gets the times of the whole call."""
    translations = tuple(_translation(translation, message) for translation in message.translations)
    return from_proto(Answer, message, translations=translations)


def _translation(
    message: pb.Translation, answer: pb.TranslateResponse | pb.ScoreResponse | pb.TranslateStreamResponse
) -> Translation:
    """A translation with the times of the answer that contains it."""
    return from_proto(Translation, message, queue_s=answer.queue_ms / 1000.0, compute_s=answer.compute_ms / 1000.0)


def piece_to_proto(piece: str | Answer) -> pb.TranslateTokensResponse:
    """Converts a piece of a translation, or the answer that ends the stream of pieces."""
    if isinstance(piece, str):
        return pb.TranslateTokensResponse(text=piece)
    return pb.TranslateTokensResponse(done=to_proto(pb.TranslateResponse, piece))


def partial_from_proto(message: pb.TranslateTokensResponse) -> Partial:
    """The inverse of `piece_to_proto`."""
    if message.WhichOneof("piece") == "done":
        return Partial("", answer_from_proto(message.done)[0])
    return Partial(message.text)


def stream_answer_to_proto(request_id: str, answer: Answer) -> pb.TranslateStreamResponse:
    """Converts the answer to one text of a stream. request_id: the id that the client gave the text."""
    translation = to_proto(pb.Translation, answer[0])
    return to_proto(pb.TranslateStreamResponse, answer, id=request_id, translation=translation, error=None)


def stream_error_to_proto(
    request_id: str, error: Exception, reference: str = "", *, level: str = "", bundle_version: str = ""
) -> pb.TranslateStreamResponse:
    """Converts the error of one text of a stream.

    reference: see `message_of`. level, bundle_version: of the level that served the text; empty if no level was chosen
    yet.
    """
    code: int = code_of(error).value[0]
    problems = error.violations if isinstance(error, InvalidRequestError) else ()
    violations = [pb.FieldViolation(field=one.field, description=one.description) for one in problems]
    sent = pb.Error(code=code, message=message_of(error, reference), violations=violations)
    return pb.TranslateStreamResponse(id=request_id, error=sent, level=level, bundle_version=bundle_version)


def stream_answer_from_proto(message: pb.TranslateStreamResponse, index: int) -> StreamAnswer:
    """Converts the answer to one text of a stream. index: the position of the text in the stream."""
    translation: Translation | None = None
    error: HmcError | None = None
    match message.WhichOneof("outcome"):
        case "translation":
            translation = _translation(message.translation, message)
        case "error":
            code = CODE_OF_NUMBER.get(message.error.code, grpc.StatusCode.UNKNOWN)
            violations = [Violation(one.field, one.description) for one in message.error.violations]
            error = error_of(code, message.error.message, violations)
        case _:
            error = InternalServiceError(
                "an answer has neither a translation nor an error: the server may be newer than this client; upgrade it"
            )
    return StreamAnswer(index, translation, error, message.level, message.bundle_version)


# ---- levels ----

KIND_OF_NAME = {
    "encoder_self": pb.HEAD_KIND_ENCODER_SELF,
    "decoder_self": pb.HEAD_KIND_DECODER_SELF,
    "cross": pb.HEAD_KIND_CROSS,
}
NAME_OF_KIND = {number: name for name, number in KIND_OF_NAME.items()}


def level_to_proto(info: LevelInfo) -> pb.Level:
    """Converts the description of one level."""
    kinds = [pb.KindHeads(kind=KIND_OF_NAME[k], heads_per_layer=r) for k, r in info.heads_by_kind.items()]
    return to_proto(pb.Level, info, heads_by_kind=kinds)


def level_from_proto(message: pb.Level) -> LevelInfo:
    """The inverse of `level_to_proto`. Kinds of heads that this version does not know are left out."""
    kinds = {NAME_OF_KIND[k.kind]: list(k.heads_per_layer) for k in message.heads_by_kind if k.kind in NAME_OF_KIND}
    return from_proto(LevelInfo, message, heads_by_kind=kinds)


def levels_to_proto(levels: LevelList) -> pb.ListLevelsResponse:
    """Converts the answer to ListLevels."""
    return to_proto(pb.ListLevelsResponse, levels, levels=[level_to_proto(level) for level in levels.levels])


def levels_from_proto(message: pb.ListLevelsResponse) -> LevelList:
    """The inverse of `levels_to_proto`."""
    return from_proto(LevelList, message, levels=tuple(map(level_from_proto, message.levels)))


def models_from_proto(message: pb.ListModelsResponse) -> tuple[ModelInfo, ...]:
    """Converts the answer to ListModels."""
    return tuple(from_proto(ModelInfo, model) for model in message.models)
