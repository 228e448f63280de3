"""Converts requests and translations to `hmc.v1` messages and back. Server and client share these functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from hmc.artifact.errors import HmcError, InternalServiceError, InvalidRequestError, Violation
from hmc.serving.requests.options import DecodeOptions, Sampling, Segmentation, TextOptions
from hmc.serving.requests.results import (
    Alternative,
    Answer,
    DocumentPiece,
    Partial,
    Segment,
    StreamAnswer,
    Token,
    Translation,
)
from hmc.serving.requests.selectors import OF_THE_MODEL, Selector
from hmc.serving.wire.status import code_of, error_of, message_of
from hmc.v1 import translation_pb2 as pb

CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
SEGMENT_FIELDS = [field.name for field in dataclasses.fields(Segment) if field.name != "tokens"]
"""Fields that a segment and its message have in common."""

# ---- requests ----


def selector_from_proto(message: pb.LevelSelector) -> Selector:
    """Converts a selector. Raises InvalidRequestError if a value is out of range."""
    chosen = message.WhichOneof("selector")
    given = {name: value for name in OF_THE_MODEL if (value := getattr(message, name))}
    return Selector(**({chosen: getattr(message, chosen)} if chosen else {}), **given)


def selector_to_proto(selector: Selector) -> pb.LevelSelector | None:
    """Converts a selector. Returns None for the default level of the first model, which is sent as an absent field."""
    if selector == Selector():
        return None
    return pb.LevelSelector(
        name=selector.name,
        max_heads=selector.max_heads,
        max_bleu_drop=selector.max_bleu_drop,
        latency_budget_ms=selector.latency_budget_ms,
        auto=selector.auto or None,
        model=selector.model,
        source_language=selector.source_language,
        target_language=selector.target_language,
    )


def options_from_proto(message: pb.DecodingOptions) -> DecodeOptions:
    """Converts options; absent fields take their defaults. Raises InvalidRequestError if a value is out of range."""
    given: dict[str, Any] = {
        field.name: tuple(value) if field.is_repeated else value for field, value in message.ListFields()
    }
    if message.HasField("sampling"):
        given["sampling"] = Sampling(**{field.name: value for field, value in message.sampling.ListFields()})
    return DecodeOptions(**given)


def options_to_proto(options: DecodeOptions) -> pb.DecodingOptions:
    """Converts options. Every option is sent, so that a server with other defaults decodes in the same way."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    if options.sampling is not None:
        values["sampling"] = pb.Sampling(**dataclasses.asdict(options.sampling))
    return pb.DecodingOptions(**values)


SEGMENTATIONS = {
    pb.SEGMENTATION_AUTO: Segmentation.AUTO,
    pb.SEGMENTATION_SENTENCE: Segmentation.SENTENCE,
    pb.SEGMENTATION_NONE: Segmentation.NONE,
}


def text_options_from_proto(message: pb.TranslateRequest | pb.TranslateDocumentRequest) -> TextOptions:
    """How the texts of a request are divided. Raises InvalidRequestError if a value is out of range."""
    document = isinstance(message, pb.TranslateDocumentRequest)
    default = Segmentation.SENTENCE if document else Segmentation.AUTO
    given = message.segmentation
    if given and given not in SEGMENTATIONS:
        raise InvalidRequestError(f"segmentation {given}: choose {', '.join(pb.Segmentation.keys()[1:])}")
    segments = message.return_segments if isinstance(message, pb.TranslateRequest) else False
    return TextOptions(SEGMENTATIONS.get(given, default), segments, tuple(message.keep))


def segmentation_to_proto(segmentation: Segmentation) -> pb.Segmentation:
    """Converts a segmentation."""
    return next(number for number, each in SEGMENTATIONS.items() if each is segmentation)


# ---- translations ----


def translation_to_proto(translation: Translation) -> pb.Translation:
    """Converts a translation without its times: the answer that contains it carries them."""
    return pb.Translation(
        text=translation.text,
        score=translation.score,
        source_tokens=translation.source_tokens,
        target_tokens=translation.target_tokens,
        source_truncated=translation.source_truncated,
        hit_max_length=translation.hit_max_length,
        alternatives=[
            pb.Alternative(
                text=other.text,
                score=other.score,
                target_tokens=other.target_tokens,
                hit_max_length=other.hit_max_length,
                tokens=_tokens_to_proto(other.tokens),
            )
            for other in translation.alternatives
        ],
        tokens=_tokens_to_proto(translation.tokens),
        source_pieces=translation.source_pieces,
        segments=[_segment_to_proto(segment) for segment in translation.segments],
        much_shorter=translation.much_shorter,
    )


def translation_from_proto(message: pb.Translation, queue_ms: float = 0.0, compute_ms: float = 0.0) -> Translation:
    """Converts a translation. queue_ms, compute_ms: times of the answer that contains it, in milliseconds."""
    return Translation(
        text=message.text,
        score=message.score,
        source_tokens=message.source_tokens,
        target_tokens=message.target_tokens,
        source_truncated=message.source_truncated,
        hit_max_length=message.hit_max_length,
        alternatives=tuple(
            Alternative(
                other.text, other.score, other.target_tokens, other.hit_max_length, _tokens_from_proto(other.tokens)
            )
            for other in message.alternatives
        ),
        tokens=_tokens_from_proto(message.tokens),
        source_pieces=tuple(message.source_pieces),
        segments=tuple(map(_segment_from_proto, message.segments)),
        much_shorter=message.much_shorter,
        queue_s=queue_ms / 1000.0,
        compute_s=compute_ms / 1000.0,
    )


def _segment_to_proto(segment: Segment) -> pb.Segment:
    fields = {name: getattr(segment, name) for name in SEGMENT_FIELDS}
    return pb.Segment(**fields, tokens=_tokens_to_proto(segment.tokens))


def _segment_from_proto(message: pb.Segment) -> Segment:
    fields: dict[str, Any] = {name: getattr(message, name) for name in SEGMENT_FIELDS}
    fields["source_pieces"] = tuple(message.source_pieces)
    return Segment(**fields, tokens=_tokens_from_proto(message.tokens))


def document_piece_to_proto(piece: DocumentPiece) -> pb.TranslateDocumentResponse:
    """Converts a piece of a document."""
    segment = None if piece.segment is None else _segment_to_proto(piece.segment)
    return pb.TranslateDocumentResponse(
        text=piece.text, segment=segment, level=piece.level, bundle_version=piece.bundle_version
    )


def document_piece_from_proto(message: pb.TranslateDocumentResponse) -> DocumentPiece:
    """The inverse of `document_piece_to_proto`."""
    segment = _segment_from_proto(message.segment) if message.HasField("segment") else None
    return DocumentPiece(message.text, segment, message.level, message.bundle_version)


def _tokens_to_proto(tokens: Sequence[Token]) -> list[pb.Token]:
    return [pb.Token(piece=t.piece, score=t.score, attention=t.attention) for t in tokens]


def _tokens_from_proto(messages: Iterable[pb.Token]) -> tuple[Token, ...]:
    return tuple(Token(m.piece, m.score if m.HasField("score") else None, tuple(m.attention)) for m in messages)


def answer_to_proto(answer: Answer) -> pb.TranslateResponse:
    """Converts the answer to a call."""
    return pb.TranslateResponse(
        translations=[translation_to_proto(translation) for translation in answer],
        level=answer.level,
        bundle_version=answer.bundle_version,
        queue_ms=answer.queue_ms,
        compute_ms=answer.compute_ms,
    )


def scores_to_proto(answer: Answer) -> pb.ScoreResponse:
    """Converts the answer to a Score call, which has the fields of TranslateResponse."""
    return pb.ScoreResponse(
        translations=[translation_to_proto(translation) for translation in answer],
        level=answer.level,
        bundle_version=answer.bundle_version,
        queue_ms=answer.queue_ms,
        compute_ms=answer.compute_ms,
    )


def answer_from_proto(message: pb.TranslateResponse | pb.ScoreResponse) -> Answer:
    """Converts the answer to a call. Each translation gets the times of the whole call."""
    times = message.queue_ms, message.compute_ms
    translations = tuple(translation_from_proto(translation, *times) for translation in message.translations)
    return Answer(translations, message.level, message.bundle_version, *times)


def piece_to_proto(piece: str | Answer) -> pb.TranslateTokensResponse:
    """Converts a piece of a translation, or the answer that ends the stream of pieces."""
    if isinstance(piece, str):
        return pb.TranslateTokensResponse(text=piece)
    return pb.TranslateTokensResponse(done=answer_to_proto(piece))


def partial_from_proto(message: pb.TranslateTokensResponse) -> Partial:
    """The inverse of `piece_to_proto`."""
    if message.WhichOneof("piece") == "done":
        return Partial("", answer_from_proto(message.done)[0])
    return Partial(message.text)


def stream_answer_to_proto(request_id: str, answer: Answer) -> pb.TranslateStreamResponse:
    """Converts the answer to one text of a stream. request_id: the id that the client gave the text."""
    return pb.TranslateStreamResponse(
        id=request_id,
        translation=translation_to_proto(answer[0]),
        level=answer.level,
        bundle_version=answer.bundle_version,
        queue_ms=answer.queue_ms,
        compute_ms=answer.compute_ms,
    )


def stream_error_to_proto(
    request_id: str, error: Exception, reference: str = "", *, level: str = "", bundle_version: str = ""
) -> pb.TranslateStreamResponse:
    """Converts the error of one text of a stream.

    reference: see `message_of`. level, bundle_version: what served the text; empty if no level was chosen yet.
    """
    code: int = code_of(error).value[0]
    found = error.violations if isinstance(error, InvalidRequestError) else ()
    violations = [pb.FieldViolation(field=one.field, description=one.description) for one in found]
    sent = pb.Error(code=code, message=message_of(error, reference), violations=violations)
    return pb.TranslateStreamResponse(id=request_id, error=sent, level=level, bundle_version=bundle_version)


def stream_answer_from_proto(message: pb.TranslateStreamResponse, index: int) -> StreamAnswer:
    """Converts the answer to one text of a stream. index: the position of the text in the stream."""
    translation: Translation | None = None
    error: HmcError | None = None
    match message.WhichOneof("outcome"):
        case "translation":
            translation = translation_from_proto(message.translation, message.queue_ms, message.compute_ms)
        case "error":
            code = CODE_OF_NUMBER.get(message.error.code, grpc.StatusCode.UNKNOWN)
            found = [Violation(one.field, one.description) for one in message.error.violations]
            error = error_of(code, message.error.message, found)
        case _:
            error = InternalServiceError(
                "an answer has neither a translation nor an error: the server may be newer than this client; upgrade it"
            )
    return StreamAnswer(index, translation, error, message.level, message.bundle_version)
