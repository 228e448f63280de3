"""Which texts are divided, and into what: the same for every door of the service, for `Translator` and the command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hmc.artifact.errors import InvalidRequestError, TooLargeError, Violation
from hmc.serving.documents.joining import Joined
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.results import Segment, Translation
from hmc.serving.requests.source_side import SourceSide
from hmc.serving.requests.text_options import Segmentation, TextOptions
from hmc.serving.text.segmentation.lines import LINE_END, stripped
from hmc.serving.text.segmentation.pieces import Piece, pieces
from hmc.serving.text.segmentation.sentences import MAX_PART, SENTENCE_END


@dataclass(frozen=True)
class Part:
    """A part of a text that is translated alone, or copied."""

    piece: Piece
    sent: str | None
    """What the model gets, with the token of the target language. None: the part is copied."""


@dataclass(frozen=True)
class Divided:
    """How a text is divided."""

    text: str
    whole: bool
    """Whether the text is translated as one."""
    own: str
    """The token of the target language with which the text begins, with the white space around it; empty: none."""
    code: str
    """The token, with a blank, that goes before each part; empty: none."""
    source: SourceSide

    def parts(self) -> Iterator[Part]:
        """The parts of the text, in order. Those of a divided text are found while they are taken."""
        if self.whole:
            code = "" if self.own or not self.text.strip() else self.code
            yield Part(Piece(0, self.text, self.text), code + self.text)
            return
        skipped = len(self.own)  # the token of the target language is not copied
        for piece in pieces(self.text[skipped:], self.source.language, self._fits):
            sent = None if piece.text is None else self.code + piece.text
            yield Part(replace(piece, begin=piece.begin + skipped) if skipped else piece, sent)

    def several(self) -> bool:
        """Whether more than one part would be translated. A long text without any end of a sentence counts as one: it
        is divided for the library that finds sentences, and not because it has several."""
        if len(self.text) > MAX_PART and not SENTENCE_END.search(self.text):
            return False
        found = (piece for piece in pieces(self.text[len(self.own) :], self.source.language, lambda _: True))
        return sum(1 for _, piece in zip(range(2), (p for p in found if p.text is not None), strict=False)) > 1

    def _fits(self, part: str) -> bool:
        return self.source.fits(self.code + part)


@dataclass(frozen=True)
class Dividing:
    """Divides the texts of a request for one level."""

    source: SourceSide
    options: DecodeOptions
    texts: TextOptions
    code: str = ""
    """The token of the target language, such as `>>deu<<`, for texts that do not begin with one. Empty: none."""

    def divided(self, text: str) -> Divided:
        """How a text is divided. Raises InvalidRequestError for one that is too long and may not be divided."""
        own = self.source.code(text)
        found = Divided(text, False, own, own or (f"{self.code} " if self.code else ""), self.source)
        return found if self._divides(found) else replace(found, whole=True)

    def checked(self, text: str) -> Divided:
        """As `divided`. Raises DividedError too, for a text that is divided although the options exclude it."""
        found = self.divided(text)
        if not found.whole:
            self._check_options()
        return found

    def _divides(self, found: Divided) -> bool:
        text, segmentation = found.text, self.texts.segmentation
        if segmentation is Segmentation.SENTENCE:
            return True
        if segmentation is Segmentation.AUTO and LINE_END.search(text, *stripped(text, 0, len(text))):
            return True
        if self.source.fits(text if found.own else found.code + text):
            return segmentation is Segmentation.AUTO and found.several()
        if segmentation is Segmentation.AUTO:
            return True
        size = len(text.encode())
        said = f"{size:,} bytes" if len(text) > 32 * self.source.room else f"{self.source.count(text):,} tokens"
        raise TooLargeError(
            f"the text has {said}, and the model has room for {self.source.room:,} tokens: shorten it, or choose "
            "SEGMENTATION_AUTO, which divides it"
        )

    def _check_options(self) -> None:
        refused = field = ""
        if self.options.n_best > 1:
            refused, field = "n_best", "options.n_best"
        elif (self.options.token_scores or self.options.alignment) and not self.texts.return_segments:
            refused, field = "token_scores and alignment without return_segments", "return_segments"
        if refused:
            message = (
                f"is divided into sentences, which excludes {refused}: change that, send the sentences as texts of "
                "their own, or choose the segmentation none (SEGMENTATION_NONE)"
            )
            raise DividedError(message, [Violation(field, message)])


class DividedError(InvalidRequestError):
    """A text is divided although options exclude it. The message goes on after the name of the text."""


def named(text: str, error: InvalidRequestError) -> InvalidRequestError:
    """The error of a text, with the name of the text, such as `texts[2]`, which is also the field at fault unless
    another one is."""
    if isinstance(error, DividedError):
        message = f"{text} {error}"
        return InvalidRequestError(message, [Violation(error.violations[0].field, message)])
    message = f"{text}: {error}"
    return type(error)(message, [Violation(text, message)])


class PutTogether:
    """The translation of one text while it is made, of the translations of its parts in their order."""

    def __init__(self, divided: Divided, *, segments: bool) -> None:
        """segments: with the sentences."""
        self._divided, self._segments = divided, segments
        self._whole: Translation | None = None
        self._joined = Joined(divided.source.target_language)

    def add(self, part: Part, translation: Translation | None) -> None:
        """Adds a part. translation: None if it is copied."""
        if translation is None:
            self._joined.copy(part.piece.source)
        elif self._divided.whole:
            self._whole = with_segment(self._divided.text, translation) if self._segments else translation
        else:
            self._joined.collect(part.piece, translation)

    def translation(self) -> Translation:
        """The whole translation."""
        return self._whole or self._joined.translation(segments=self._segments)


def with_segment(text: str, translation: Translation) -> Translation:
    """The translation of a text that was not divided, with its one segment. A blank text has no segment."""
    begin, end = stripped(text, 0, len(text))
    if begin == end:
        return translation
    segment = Segment(
        begin, end, 0, len(translation.text), translation.score, translation.source_tokens, translation.target_tokens,
        translation.hit_max_length, translation.tokens, translation.source_pieces, translation.much_shorter,
    )  # fmt: skip
    return replace(translation, segments=(segment,))
