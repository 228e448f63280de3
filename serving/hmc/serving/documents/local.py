"""Documents without a server: the same work on an event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Protocol

from hmc.serving.documents.documents import Divider, check_document
from hmc.serving.documents.joining import Joined
from hmc.serving.documents.keeping import Submit
from hmc.serving.requests.options import DecodeOptions, Target
from hmc.serving.requests.results import DocumentPiece, Translation
from hmc.serving.requests.source_side import SourceSide
from hmc.serving.requests.text_options import TextOptions


class Submits(Protocol):
    """The part of `hmc.serving.Translator` that is used here."""

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

    code: see `Divider.code`. Closing the iterator early cancels what is under way. Raises
    InvalidRequestError for options that exclude each other.
    """
    options, texts = options or DecodeOptions(), texts or TextOptions()
    check_document(options, texts)
    divider = Divider(translator.source, _submit_to(translator), options, texts, code)
    pieces = divider.document(text, Joined(translator.source.target_language))
    with asyncio.Runner() as runner:
        try:
            while (piece := runner.run(anext(pieces, None))) is not None:
                yield piece
        finally:
            runner.run(pieces.aclose())


def _submit_to(translator: Submits) -> Submit:
    async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
        return await asyncio.wrap_future(translator.submit(text, options, target, block=True))

    return submit
