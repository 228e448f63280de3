"""Texts without a server: the same division, and documents on an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.documents.dividing import Dividing, Joined, PutTogether, named
from hmc.serving.documents.documents import Divider, check_document
from hmc.serving.documents.keeping import Submit
from hmc.serving.requests.options import Segmentation, Target, TextOptions
from hmc.serving.requests.results import DocumentPiece, Translation
from hmc.serving.requests.source_side import SourceSide


class Submits(Protocol):
    """The methods of `hmc.serving.Translator` that are used here."""

    @property
    def source(self) -> SourceSide: ...

    def submit(self, text: str, options: DecodeOptions, target: Target, *, block: bool) -> Future[Translation]: ...


def translate_document(
    translator: Submits,
    text: str,
    options: DecodeOptions | None = None,
    texts: TextOptions | None = None,
    code: str = "",
) -> Iterator[DocumentPiece]:
    """Yields the pieces of a translated document, each as soon as it and all before it are translated.

    code: see `Dividing.code`. Closing the iterator early cancels the sentences that are under way. Raises
    InvalidRequestError for options that exclude each other.
    """
    options = options or DecodeOptions()
    texts = texts or TextOptions()
    check_document(options, texts)
    divider = Divider(Dividing(translator.source, options, texts, code), _submit_to(translator))
    pieces = divider.document(text, Joined(keep=texts.keep))
    with asyncio.Runner() as runner:
        try:
            while (piece := runner.run(anext(pieces, None))) is not None:
                yield piece
        finally:
            runner.run(pieces.aclose())


def translate_texts(
    source: SourceSide,
    submit: Callable[[Sequence[str], Sequence[Target], Sequence[int]], list[Translation]],
    texts: Sequence[str],
    options: DecodeOptions,
    targets: Sequence[Target],
    segmentation: Segmentation,
) -> list[Translation]:
    """The translation of each text, divided as the service divides it. targets: a target prefix begins the first
    sentence.

    submit: translates texts that are not divided, with a target and the index of their text for each. Raises
    InvalidRequestError with the index of a text that cannot be divided.
    """
    dividing = Dividing(source, options, TextOptions(segmentation))
    divided = []
    for index, text in enumerate(texts):
        try:
            divided.append(dividing.checked(text))
        except InvalidRequestError as error:
            raise named(f"text {index}", error) from error
    parts = [list(each.parts()) for each in divided]
    sent: list[str] = []
    aims: list[Target] = []
    of: list[int] = []
    for index, found in enumerate(parts):
        words = [part.sent for part in found if part.sent is not None]
        sent += words
        aims += [targets[index] if n == 0 else Target() for n in range(len(words))]
        of += [index] * len(words)
    done = iter(submit(sent, aims, of))
    made = []
    for whole, found in zip(divided, parts, strict=True):
        together = PutTogether(whole, segments=False)
        for part in found:
            together.add(part, None if part.sent is None else next(done))
        made.append(together.translation())
    return made


def _submit_to(translator: Submits) -> Submit:
    async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
        return await asyncio.wrap_future(translator.submit(text, options, target, block=True))

    return submit
