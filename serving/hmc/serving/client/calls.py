"""The calls of the service as plain data: request, conversion of the answer, and whether it may be sent again.

Both clients build their calls here, so that they check the same values and send the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.checks import check_list, check_text, check_whole
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.client.window import Window
from hmc.serving.requests.options import Segmentation, TextOptions
from hmc.serving.requests.results import (
    Answer,
    DocumentPiece,
    LevelInfo,
    Partial,
    StreamAnswer,
)
from hmc.serving.requests.selectors import Selector
from hmc.serving.wire import messages as converters
from hmc.serving.wire.metadata import ALLOWED, new_id
from hmc.v1 import translation_pb2 as pb

T = TypeVar("T")
SERVICE = "hmc.v1.TranslationService"
"""The name of the service, and of its health."""
Level = str | Selector | None
"""A level's name, a selector, or None for the server's default level."""


class Where(TypedDict, total=False):
    """The model that translates, and the name of the call."""

    model: str | None
    """The name of a model, of a server of several."""
    source_language: str | None
    """A BCP 47 tag such as `de`, or an ISO 639 code such as `deu`; the first model that fits translates."""
    target_language: str | None
    """As `source_language`; it also chooses the target token of a multilingual model. Model and languages replace the
    same fields of a selector; None leaves them as they are."""
    request_id: str | None
    """The name of the call in the server's log: 1 to 128 letters, digits and `. _ : / + = @ -`. None: a random one.
    Errors have it as `request_id`."""


class Texts(Where, total=False):
    """`Where`, and how texts are treated before and after the search."""

    segmentation: Segmentation | str
    """Where texts are divided: "auto", "sentence" or "none", see `Segmentation`."""
    keep: Sequence[str]
    """Phrases that are copied into the translation as they are."""


class Translating(Texts, total=False):
    """`Texts`, and what `translate` alone takes."""

    target_prefixes: Sequence[str]
    """The beginning of each translation; either none, or one for each text."""
    return_segments: bool
    """Each translation has its sentences with offsets."""


class Streaming(Where, total=False):
    """`Where`, and how a stream runs."""

    in_order: bool
    """Yield the answers in the order of the texts (default), or as they arrive."""
    in_flight: int
    """Most texts that are read and whose answers are not given out: what bounds the memory. Default 256."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call. `convert` turns each message that answers it into plain data."""

    method: str
    request: Any
    """The message that is sent; None for a stream of them."""
    convert: Callable[[Any], T]
    timeout: float | None
    request_id: str | None
    """The name of the call. None: a new one is made."""
    admin: bool = False
    """Whether it is a method of AdminService. It is then about one server, and never sent again."""

    def __post_init__(self) -> None:
        """Raises InvalidRequestError if the name is malformed."""
        if self.request_id is None:
            object.__setattr__(self, "request_id", new_id())
        elif not ALLOWED.fullmatch(self.request_id):
            raise InvalidRequestError(
                f"request_id {self.request_id!r}: give 1 to 128 letters, digits and . _ : / + = @ -"
            )


def translate(
    texts: Sequence[str],
    level: Level,
    options: DecodeOptions | None,
    timeout: float | None,
    *,
    target_prefixes: Sequence[str] = (),
    segmentation: Segmentation | str = Segmentation.AUTO,
    return_segments: bool = False,
    keep: Sequence[str] = (),
    request_id: str | None = None,
    **model: str | None,
) -> Call[Answer]:
    """See `Client.translate`. model: the fields of `Where` that `settings` takes."""
    check_list(texts, "texts")
    check_list(target_prefixes, "target_prefixes")
    request = pb.TranslateRequest(
        texts=texts,
        target_prefixes=target_prefixes,
        return_segments=return_segments,
        **_handling(segmentation, keep),
        **settings(level, options, **model),
    )
    return Call("Translate", request, converters.answer_from_proto, timeout, request_id)


def translate_document(
    text: str,
    level: Level,
    options: DecodeOptions | None,
    timeout: float | None,
    *,
    segmentation: Segmentation | str = Segmentation.SENTENCE,
    keep: Sequence[str] = (),
    request_id: str | None = None,
    **model: str | None,
) -> Call[DocumentPiece]:
    """See `Client.translate_document`."""
    check_text(text, "text")
    chosen = settings(level, options, **model)
    request = pb.TranslateDocumentRequest(text=text, **_handling(segmentation, keep), **chosen)
    return Call("TranslateDocument", request, partial(converters.from_proto, DocumentPiece), timeout, request_id)


def translate_tokens(
    text: str,
    level: Level,
    options: DecodeOptions | None,
    timeout: float | None,
    *,
    target_prefix: str = "",
    request_id: str | None = None,
    **model: str | None,
) -> Call[Partial]:
    """See `Client.translate_tokens`."""
    check_text(text, "text")
    check_text(target_prefix, "target_prefix")
    request = pb.TranslateTokensRequest(text=text, target_prefix=target_prefix, **settings(level, options, **model))
    return Call("TranslateTokens", request, converters.partial_from_proto, timeout, request_id)


def translate_stream(
    level: Level,
    options: DecodeOptions | None,
    timeout: float | None,
    *,
    in_order: bool = True,
    in_flight: int = 256,
    request_id: str | None = None,
    **model: str | None,
) -> tuple[Call[list[StreamAnswer]], Window]:
    """See `Client.translate_stream`. Returns the call without its requests, which the window makes of the texts."""
    check_whole("in_flight", in_flight, 1)
    window = Window(settings(level, options, **model), in_order=in_order, in_flight=in_flight)
    return Call("TranslateStream", None, window.answer, timeout, request_id), window


def score(
    texts: Sequence[str],
    references: Sequence[str],
    level: Level,
    options: DecodeOptions | None,
    timeout: float | None,
    *,
    request_id: str | None = None,
    **model: str | None,
) -> Call[Answer]:
    """See `Client.score`."""
    check_list(texts, "texts")
    check_list(references, "references")
    request = pb.ScoreRequest(texts=texts, references=references, **settings(level, options, **model))
    return Call("Score", request, converters.answer_from_proto, timeout, request_id)


def change_level(
    method: str, level: str, timeout: float | None, model: str | None, request_id: str | None
) -> Call[LevelInfo]:
    """method: LoadLevel, UnloadLevel or SetDefaultLevel. See the methods of `Client` with the same names."""
    check_text(level, "level")
    request = getattr(pb, f"{method}Request")(name=level, model=model)
    return Call(
        method, request, lambda message: converters.level_from_proto(message.level), timeout, request_id,
        admin=True,
    )  # fmt: skip


def settings(
    level: Level,
    options: DecodeOptions | None,
    *,
    model: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> dict[str, Any]:
    """The fields `level` and `options` of a request."""
    selector = Selector.of(level)
    selector = replace(
        selector,
        model=selector.model if model is None else model,
        source_language=selector.source_language if source_language is None else source_language,
        target_language=selector.target_language if target_language is None else target_language,
    )
    return {
        "level": converters.selector_to_proto(selector),
        "options": converters.to_proto(pb.DecodingOptions, options or DecodeOptions()),
    }


def _handling(segmentation: Segmentation | str, keep: Sequence[str]) -> dict[str, Any]:
    chosen = Segmentation.of(segmentation)
    check_list(keep, "keep")
    return {"segmentation": converters.segmentation_to_proto(chosen), "keep": TextOptions(keep=tuple(keep)).keep}
