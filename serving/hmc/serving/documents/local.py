"""Texts without a server: the same division, and documents on an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

from hmc.artifact.errors import InvalidRequestError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.documents.documents import DocumentTranslator, check_document
from hmc.serving.documents.keeping import Submit
from hmc.serving.documents.splitting import DocumentBuilder, Splitter, TextBuilder, with_field
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

    code: see `Splitter.code`. Closing the iterator early cancels the sentences that are under way. Raises
    InvalidRequestError for options that exclude each other.
    """
    options = options or DecodeOptions()
    texts = texts or TextOptions()
    check_document(options, texts)
    documents = DocumentTranslator(Splitter(translator.source, options, texts, code), _submit_to(translator))
    pieces = documents.document(text, DocumentBuilder(keep=texts.keep))
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
    splitter = Splitter(source, options, TextOptions(segmentation))
    splits = []
    for index, text in enumerate(texts):
        try:
            splits.append(splitter.split_checked(text))
        except InvalidRequestError as error:
            raise with_field(f"text {index}", error) from error
    parts = [list(split.parts()) for split in splits]
    sentences: list[str] = []
    begins: list[Target] = []
    indices: list[int] = []
    for index, parts_of_text in enumerate(parts):
        target = targets[index]
        for part in parts_of_text:
            if part.sent is not None:
                sentences.append(part.sent)
                begins.append(target)
                indices.append(index)
                target = Target()
    done = iter(submit(sentences, begins, indices))
    translations = []
    for split, parts_of_text in zip(splits, parts, strict=True):
        builder = TextBuilder(split, segments=False)
        for part in parts_of_text:
            builder.add(part, None if part.sent is None else next(done))
        translations.append(builder.translation())
    return translations


def _submit_to(translator: Submits) -> Submit:
    async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
        return await asyncio.wrap_future(translator.submit(text, options, target, block=True))

    return submit
