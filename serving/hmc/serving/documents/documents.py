"""Texts of any length in, translations out: what `Translate` and `TranslateDocument` do with a level."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from hmc.artifact.errors import InvalidRequestError, OverloadedError, TooLargeError, Violation
from hmc.serving.documents.joining import Joined
from hmc.serving.documents.keeping import Keeper, Submit
from hmc.serving.documents.windows import in_order
from hmc.serving.requests.options import DecodeOptions, Target
from hmc.serving.requests.results import DocumentPiece, Segment, Translation
from hmc.serving.requests.source_side import SourceSide
from hmc.serving.requests.text_options import Segmentation, TextOptions
from hmc.serving.text.segmentation.lines import LINE_END, stripped
from hmc.serving.text.segmentation.pieces import Piece, pieces

DOCUMENT_WINDOW = 64
"""Sentences of one document under way."""
READ_AT_ONCE = 16384
"""Characters that are read before the event loop serves others."""
MAX_COPIED = 16384
"""Characters of the longest copied part that is sent together with the sentence after it."""


def check_document(options: DecodeOptions, texts: TextOptions) -> None:
    """Raises InvalidRequestError for what a document cannot have."""
    if texts.segmentation is Segmentation.NONE:
        raise InvalidRequestError("a document is divided: choose segmentation auto or sentence, or use Translate")
    if options.n_best > 1:
        raise InvalidRequestError("a document has one translation: leave n_best out")
    check_keep(options, texts)


def check_keep(options: DecodeOptions, texts: TextOptions) -> None:
    """Raises InvalidRequestError for options that `keep` excludes."""
    if texts.keep and (options.n_best > 1 or options.token_scores or options.alignment):
        raise InvalidRequestError(
            "keep changes translations after the search: leave out n_best, token_scores and alignment"
        )


def divided(text: str, source: SourceSide, segmentation: Segmentation, code: str = "") -> bool:
    """Whether a text is divided. code: what is put before it, or what it begins with already.

    Raises InvalidRequestError for one that is too long and may not be divided.
    """
    if segmentation is Segmentation.SENTENCE:
        return True
    if segmentation is Segmentation.AUTO and LINE_END.search(text, *stripped(text, 0, len(text))):
        return True
    if source.fits(text if text.startswith(code) else code + text):
        return False
    if segmentation is Segmentation.AUTO:
        return True
    size = f"{len(text.encode()):,} bytes" if len(text) > 32 * source.room else f"{source.count(text):,} tokens"
    raise TooLargeError(
        f"the text has {size}, and the model has room for {source.room:,} tokens: shorten it, or choose "
        "SEGMENTATION_AUTO, which divides it"
    )


def with_segment(text: str, translation: Translation) -> Translation:
    """The translation of a text that was not divided, with the one sentence that it is. None if it is blank."""
    begin, end = stripped(text, 0, len(text))
    if begin == end:
        return translation
    segment = Segment(
        begin, end, 0, len(translation.text), translation.score, translation.source_tokens, translation.target_tokens,
        translation.hit_max_length, translation.tokens, translation.source_pieces,
    )  # fmt: skip
    return replace(translation, segments=(segment,))


@dataclass(frozen=True)
class Divider:
    """Divides texts for one level, and translates the sentences. submit: translates one text at the level."""

    source: SourceSide
    submit: Submit
    options: DecodeOptions
    texts: TextOptions
    code: str = ""
    """The token of the target language, such as `>>deu<<`, for texts that do not begin with one. Empty: none."""

    async def translate(
        self, texts: Sequence[str], targets: Sequence[Target], window: int
    ) -> AsyncGenerator[Translation]:
        """Yields the translation of each text. window: sentences under way.

        A target prefix begins the first sentence. Raises InvalidRequestError and OverloadedError with the index of the
        text.
        """
        keeper = Keeper(self.texts.keep)
        units = await self.whole(texts)

        def items() -> Iterator[tuple[int, Piece | None]]:
            for index, (text, unit) in enumerate(zip(texts, units, strict=True)):
                yield from ((index, piece) for piece in (_unit(text) if unit else self._pieces(text)))
                yield index, None

        async def work(item: tuple[int, Piece | None]) -> Translation | None:
            index, piece = item
            if piece is None or piece.text is None:
                return None
            target = targets[index] if first.setdefault(index, piece.begin) == piece.begin else Target()
            try:
                return await self._translated(keeper, texts[index], units[index], piece, target)
            except InvalidRequestError as error:
                raise _at(index, error) from error
            except OverloadedError as error:
                raise OverloadedError(f"texts[{index}]: {error}") from error

        first: dict[int, int] = {}  # text → offset of its first sentence
        whole: Translation | None = None
        joined = Joined(self.source.target_language)
        async with aclosing(in_order(items(), work, window)) as results:
            async for (index, piece), translation in results:
                if piece is None:
                    yield whole or joined.translation(segments=self.texts.return_segments)
                    whole, joined = None, Joined(self.source.target_language)
                elif translation is None:
                    joined.copy(piece.source)
                elif units[index]:
                    whole = with_segment(texts[index], translation) if self.texts.return_segments else translation
                else:
                    joined.collect(piece, translation)

    async def document(self, text: str, joined: Joined) -> AsyncGenerator[DocumentPiece]:
        """Yields the pieces of a translated document, each as soon as it and all before it are ready. joined: empty; it
        then has the document's tokens and times, but no text."""
        keeper = Keeper(self.texts.keep)
        unit = not divided(text, self.source, self.texts.segmentation, self._code(text))
        items = _around_unit(text) if unit else self._pieces(text)

        async def work(piece: Piece) -> Translation | None:
            if piece.text is None:
                return None
            return await self._translated(keeper, text, unit, piece, Target())

        copied = ""
        async with aclosing(in_order(items, work, DOCUMENT_WINDOW)) as results:
            async for piece, translation in results:
                if translation is None:
                    copied = joined.copy(piece.source)
                    if len(copied) > MAX_COPIED:
                        yield DocumentPiece(copied)
                        copied = ""
                else:
                    made, segment = joined.add(piece, translation)
                    yield DocumentPiece(copied + made, segment)
                    copied = ""
                joined.forget()
        if copied:
            yield DocumentPiece(copied)

    async def whole(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text is translated as one. Raises InvalidRequestError with the index of a text that is too long
        and may not be divided, or that is divided although the options exclude it."""
        units, read = [], 0
        for index, text in enumerate(texts):
            try:
                units.append(not divided(text, self.source, self.texts.segmentation, self._code(text)))
            except InvalidRequestError as error:
                raise _at(index, error) from error
            if not units[-1]:
                self._check_divided(index)
            read += len(text)
            if read > READ_AT_ONCE:
                read = 0
                await asyncio.sleep(0)
        return units

    def _pieces(self, text: str) -> Iterator[Piece]:
        """The pieces of a text after its language code, which is not copied."""
        code, skipped = self._code(text), len(self.source.code(text))
        for piece in pieces(text[skipped:], self.source.language, lambda part: self.source.fits(code + part)):
            yield replace(piece, begin=piece.begin + skipped) if skipped else piece

    def _code(self, text: str) -> str:
        """The token of the target language that goes before each part of a text, with a blank; empty if none does."""
        return self.source.code(text) or (f"{self.code} " if self.code else "")

    async def _translated(self, keeper: Keeper, text: str, unit: bool, piece: Piece, target: Target) -> Translation:
        assert piece.text is not None
        own = self.source.code(text)
        code = "" if unit and (own or not text.strip()) else self._code(text)

        async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
            return await self.submit(code + part, options, target)

        return await keeper.translate(submit, piece.text, self.options, target)

    def _check_divided(self, index: int) -> None:
        refused = field = ""
        if self.options.n_best > 1:
            refused, field = "n_best", "options.n_best"
        elif (self.options.token_scores or self.options.alignment) and not self.texts.return_segments:
            refused, field = "token_scores and alignment without return_segments", "return_segments"
        if refused:
            message = (
                f"texts[{index}] is divided into sentences, which excludes {refused}: change that, send the sentences "
                "as texts of their own, or choose SEGMENTATION_NONE"
            )
            raise InvalidRequestError(message, [Violation(field, message)])


def _at(index: int, error: InvalidRequestError) -> InvalidRequestError:
    message = f"texts[{index}]: {error}"
    return type(error)(message, [Violation(f"texts[{index}]", message)])


def _unit(text: str) -> Iterator[Piece]:
    """A text as one piece, white space included."""
    yield Piece(0, text, text)


def _around_unit(text: str) -> Iterator[Piece]:
    """A document of one piece, and the white space around it."""
    begin, end = stripped(text, 0, len(text))
    for first, last, words in ((0, begin, False), (begin, end, True), (end, len(text), False)):
        if first < last:
            yield Piece(first, text[first:last], text[first:last] if words else None)
