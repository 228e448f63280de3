"""Between `hmc.v1` messages and the domain's words, both ways: requests, and the translations that answer them. Server
and client use the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import grpc

from hmc.artifact.errors import HmcError, InternalServiceError
from hmc.serving.answers import Answer, StreamAnswer
from hmc.serving.options import DecodeOptions, Sampling
from hmc.serving.results import Alternative, Partial, Token, Translation
from hmc.serving.selection import Selector
from hmc.serving.status import code_of, error_of, message_of
from hmc.v1 import translation_pb2 as pb

CODE_OF_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
LISTS = {"suppressed_tokens", "suppressed_phrases", "attention_heads"}
"""Options that are lists."""

# ---- requests ----


def selector_from_proto(message: pb.LevelSelector) -> Selector:
    """Raises InvalidRequestError on values out of range."""
    chosen = message.WhichOneof("selector")
    return Selector(**{chosen: getattr(message, chosen)}) if chosen else Selector()


def selector_to_proto(selector: Selector) -> pb.LevelSelector | None:
    """None for the default level."""
    if selector == Selector():
        return None
    return pb.LevelSelector(
        name=selector.name,
        max_heads=selector.max_heads,
        max_bleu_drop=selector.max_bleu_drop,
        latency_budget_ms=selector.latency_budget_ms,
        auto=selector.auto or None,
    )


def options_from_proto(message: pb.DecodingOptions) -> DecodeOptions:
    """Absent fields take their defaults. Raises InvalidRequestError on values out of range."""
    given: dict[str, Any] = {field.name: value for field, value in message.ListFields()}
    for name in LISTS & given.keys():
        given[name] = tuple(given[name])
    if message.HasField("sampling"):
        given["sampling"] = Sampling(**{field.name: value for field, value in message.sampling.ListFields()})
    return DecodeOptions(**given)


def options_to_proto(options: DecodeOptions) -> pb.DecodingOptions:
    """Every option is written, so that client and server need not agree on defaults."""
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    if options.sampling is not None:
        values["sampling"] = pb.Sampling(**dataclasses.asdict(options.sampling))
    return pb.DecodingOptions(**values)


# ---- translations ----


def translation_to_proto(translation: Translation) -> pb.Translation:
    """Times are not part of the message: they belong to the answer around it."""
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
    )


def translation_from_proto(message: pb.Translation, queue_ms: float = 0.0, compute_ms: float = 0.0) -> Translation:
    """With the times of the answer around it, in milliseconds."""
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
        queue_s=queue_ms / 1000.0,
        compute_s=compute_ms / 1000.0,
    )


def _tokens_to_proto(tokens: Sequence[Token]) -> list[pb.Token]:
    return [pb.Token(piece=t.piece, score=t.score, attention=t.attention) for t in tokens]


def _tokens_from_proto(messages: Iterable[pb.Token]) -> tuple[Token, ...]:
    return tuple(Token(m.piece, m.score if m.HasField("score") else None, tuple(m.attention)) for m in messages)


def answer_to_proto(answer: Answer) -> pb.TranslateResponse:
    """The answer to a call."""
    return pb.TranslateResponse(
        translations=[translation_to_proto(translation) for translation in answer],
        level=answer.level,
        bundle_version=answer.bundle_version,
        queue_ms=answer.queue_ms,
        compute_ms=answer.compute_ms,
    )


def answer_from_proto(message: pb.TranslateResponse) -> Answer:
    """Each translation gets the times of the whole call."""
    times = message.queue_ms, message.compute_ms
    translations = tuple(translation_from_proto(translation, *times) for translation in message.translations)
    return Answer(translations, message.level, message.bundle_version, *times)


def piece_to_proto(piece: str | Answer) -> pb.TranslateTokensResponse:
    """A piece of a translation, or the answer that ends it."""
    if isinstance(piece, str):
        return pb.TranslateTokensResponse(text=piece)
    return pb.TranslateTokensResponse(done=answer_to_proto(piece))


def partial_from_proto(message: pb.TranslateTokensResponse) -> Partial:
    """The inverse of `piece_to_proto`."""
    if message.WhichOneof("piece") == "done":
        return Partial("", answer_from_proto(message.done)[0])
    return Partial(message.text)


def stream_answer_to_proto(request_id: str, answer: Answer) -> pb.TranslateStreamResponse:
    """The answer to one text of a stream."""
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
    """Why one text of a stream has no translation, and at which level if one was chosen; `reference` as in
    `message_of`."""
    code: int = code_of(error).value[0]
    told = pb.Error(code=code, message=message_of(error, reference))
    return pb.TranslateStreamResponse(id=request_id, error=told, level=level, bundle_version=bundle_version)


def stream_answer_from_proto(message: pb.TranslateStreamResponse, index: int) -> StreamAnswer:
    """`index` is the place of the text that the client gave this id."""
    translation: Translation | None = None
    error: HmcError | None = None
    match message.WhichOneof("outcome"):
        case "translation":
            translation = translation_from_proto(message.translation, message.queue_ms, message.compute_ms)
        case "error":
            code = CODE_OF_NUMBER.get(message.error.code, grpc.StatusCode.UNKNOWN)
            error = error_of(code, message.error.message)
        case _:
            error = InternalServiceError("the server answered with neither a translation nor an error; is it newer?")
    return StreamAnswer(index, translation, error, message.level, message.bundle_version)
