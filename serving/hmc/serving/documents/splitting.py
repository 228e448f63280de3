"""Which texts are divided, into what, and how the translations are put together: the same for every door of the
service, for `Translator` and the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from hmc.artifact.errors import InvalidRequestError, TooLargeError, Violation
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.requests.options import MAX_ANSWER_TOKENS, Segmentation, TextOptions
from hmc.serving.requests.results import Segment, Translation
from hmc.serving.requests.source_side import SourceSide
from hmc.serving.text.segmentation.lines import LINE_END, UNSPACED_SCRIPT, Span, stripped
from hmc.serving.text.segmentation.pieces import PLAIN_SENTENCE, Piece, has_fractions, pieces, runs, worded
from hmc.serving.text.segmentation.sentences import MAX_PART, SENTENCE_END

UNSPACED = {
    "zh", "ja", "th", "lo", "km", "my", "bo", "yue", "wuu", "zho", "cmn", "jpn", "tha", "lao", "khm", "mya", "bod",
}  # fmt: skip
"""Languages that write no blank between sentences, by both kinds of codes."""
CLOSING = "”’»)]"
"""What may stand after the end of a sentence in a script without blanks."""


class DocumentBuilder:
    """The translation of one text while it is made."""

    def __init__(self, target_language: str = "", keep: Sequence[str] = ()) -> None:
        """target_language: see `write_in`. keep: phrases in which no line break of the source is put."""
        self.write_in(target_language)
        self._keep = keep
        self._parts: list[str] = []
        self._size = 0
        self._after = ""  # the last part's source, if it is a sentence
        self._total = Translation("", 0.0, 0, 0)
        self._segments: list[Segment] = []

    def write_in(self, language: str) -> None:
        """The language of the translation: a BCP 47 tag, or the name in a language token, such as `zho_Hans`."""
        self._spaced = language.replace("_", "-").partition("-")[0].lower() not in UNSPACED

    def copy(self, text: str) -> str:
        """Adds a copied part, and returns it."""
        self._after = ""
        return self._write(text)

    def add(self, piece: Piece, translation: Translation) -> tuple[str, Segment]:
        """Adds a sentence. Returns the text that was added, and where it lies."""
        met = self._after.rstrip(CLOSING)[-1:], piece.source[:1]
        glue = self._write(" " if self._after and self._spaced and any(map(UNSPACED_SCRIPT.match, met)) else "")
        begin = self._size
        written = self._write(piece.put_back(translation.text, self._keep))
        self._after = piece.source
        self._total = _sum(self._total, replace(translation, joined_lines=len(piece.breaks)))
        segment = Segment(
            piece.begin, piece.end, begin, self._size, translation.score, translation.source_tokens,
            translation.target_tokens, translation.hit_max_length, translation.tokens, translation.source_pieces,
            translation.much_shorter, translation.mostly_unknown, len(piece.breaks),
        )  # fmt: skip
        return glue + written, segment

    def collect(self, piece: Piece, translation: Translation) -> None:
        """As `add`. `translation` then returns this sentence too."""
        self._segments.append(self.add(piece, translation)[1])

    def translation(self, *, segments: bool) -> Translation:
        """The whole translation. segments: with the sentences.

        Its score is the mean of the sentences' scores, weighted by their target tokens: with a length penalty of 1, the
        log-probability of all tokens divided by their number, as for a single sentence.
        """
        text = "".join(self._parts)
        listed = tuple(self._segments) if segments else ()
        return replace(self._total, text=text, segments=listed)

    def forget(self) -> None:
        """Drops the text so far. Offsets go on: a document is sent piece by piece."""
        self._parts.clear()

    def _write(self, text: str) -> str:
        self._parts.append(text)
        self._size += len(text)
        return text


def _sum(total: Translation, added: Translation) -> Translation:
    """The numbers of two translations together; a total of no tokens is the first one. What was copied has no times."""
    if added.blank:
        return replace(total, text="")
    tokens = total.target_tokens + added.target_tokens
    weighted = total.score * total.target_tokens + added.score * added.target_tokens
    begin = min(total.queue_s, added.queue_s) if total.target_tokens else added.queue_s
    end = max(total.queue_s + total.compute_s, added.queue_s + added.compute_s)
    return Translation(
        text="",
        score=weighted / tokens if tokens else 0.0,
        source_tokens=total.source_tokens + added.source_tokens,
        target_tokens=tokens,
        source_truncated=total.source_truncated or added.source_truncated,
        hit_max_length=total.hit_max_length or added.hit_max_length,
        much_shorter=total.much_shorter or added.much_shorter,
        mostly_unknown=total.mostly_unknown or added.mostly_unknown,
        joined_lines=total.joined_lines + added.joined_lines,
        queue_s=begin,
        compute_s=end - begin,
    )


@dataclass(frozen=True)
class Part:
    """A part of a text that is translated alone, or copied."""

    piece: Piece
    sent: str | None
    """What the model gets, with the token of the target language. None: the part is copied."""


@dataclass(frozen=True)
class SplitText:
    """How a text is divided."""

    text: str
    whole: bool
    """Whether the text is translated as one."""
    own: str
    """The token of the target language with which the text begins, with the white space around it; empty: none."""
    code: str
    """The token, with a blank, that goes before each part; empty: none."""
    source: SourceSide

    @property
    def target_language(self) -> str:
        """Language of the translation: of its token, or else of the bundle."""
        return self.code.strip().strip("<>") or self.source.target_language

    def parts(self) -> Iterator[Part]:
        """The parts of the text, in order. The parts of a divided text are found while they are taken."""
        if self.whole:
            code = "" if self.own or not self.text.strip() else self.code
            yield Part(Piece(0, self.text, self.text), code + self.text)
            return
        skipped = len(self.own)  # the token of the target language is not copied
        for piece in pieces(self.text[skipped:], self.source.language, self._fits):
            sent = None if piece.text is None else self.code + piece.text
            yield Part(replace(piece, begin=piece.begin + skipped) if skipped else piece, sent)

    def runs(self) -> list[Part]:
        """The parts of a text that is not divided into sentences, in order, see `hmc.serving.text.segmentation.runs`.
        At most one part is translated, unless more than blanks lies between two sentences."""
        skipped = len(self.own)
        parts: list[Part] = []
        at = skipped
        for run in runs(self.text[skipped:], self.source.language):
            begin = run.begin + skipped
            if begin > at:
                parts.append(Part(Piece(at, self.text[at:begin]), None))
            parts.append(Part(replace(run, begin=begin), f"{self.code}{run.text}"))
            at = run.end + skipped
        if at < len(self.text):
            parts.append(Part(Piece(at, self.text[at:]), None))
        return parts

    def worded(self) -> Span:
        """The part of the text that is translated if the text is not divided."""
        skipped = len(self.own)
        begin, end = worded(self.text[skipped:], self.source.language)
        return begin + skipped, end + skipped

    def sentences(self, most: int) -> int:
        """How many parts would be translated, counted up to `most`. A long text without any end of a sentence counts as
        one: it is divided for the library that finds sentences, and not because it has several."""
        if PLAIN_SENTENCE.fullmatch(self.text, len(self.own)) and not has_fractions(self.text):
            return 1
        if len(self.text) > MAX_PART and not SENTENCE_END.search(self.text):
            return 1
        parts = pieces(self.text[len(self.own) :], self.source.language, lambda _: True)
        return sum(1 for _ in islice((piece for piece in parts if piece.text is not None), most))

    def _fits(self, part: str) -> bool:
        return self.source.fits(self.code + part)


@dataclass(frozen=True)
class Splitter:
    """Divides the texts of a request for one level."""

    source: SourceSide
    options: DecodeOptions
    texts: TextOptions
    code: str = ""
    """The token of the target language, such as `>>deu<<`, for texts that do not begin with one. Empty: none."""

    def split(self, text: str) -> SplitText:
        """How a text is divided. Raises InvalidRequestError for one that is too long and may not be divided."""
        own = self.source.code(text)
        code = own or (f"{self.code} " if self.code else "")
        split = SplitText(text, False, own, code, self.source)
        return split if self._divides(split) else replace(split, whole=True)

    def split_checked(self, text: str) -> SplitText:
        """As `split`. Raises SplitError too, for a text that is divided although the options exclude it, and
        TooLargeError for one of more than MAX_ANSWER_TOKENS."""
        split = self.split(text)
        if not split.whole and (tokens := self.source.about(text, MAX_ANSWER_TOKENS)) > MAX_ANSWER_TOKENS:
            raise TooLargeError(
                f"the text has {tokens:,} tokens, and one answer translates at most {MAX_ANSWER_TOKENS:,}: divide it, "
                "or send it to TranslateDocument (`hmc translate --document`), which answers sentence by sentence"
            )
        if not split.whole and split.sentences(1):
            self._check_options()
        return split

    def _divides(self, split: SplitText) -> bool:
        text = split.text
        segmentation = self.texts.segmentation
        if segmentation is Segmentation.SENTENCE:
            return True
        if segmentation is Segmentation.AUTO and LINE_END.search(text, *stripped(text, 0, len(text))):
            return True
        if self.source.fits(text if split.own else split.code + text):
            return segmentation is Segmentation.AUTO and bool(text.strip()) and split.sentences(2) != 1
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
            refused = "n_best"
            field = "options.n_best"
        elif (self.options.token_scores or self.options.alignment) and not self.texts.return_segments:
            refused = "token_scores and alignment without return_segments"
            field = "return_segments"
        if refused:
            message = (
                f"the text is divided into sentences, which excludes {refused}: change that, send the sentences as "
                "texts of their own, or choose the segmentation none (SEGMENTATION_NONE)"
            )
            raise SplitError(message, [Violation(field, message)])


class SplitError(InvalidRequestError):
    """A text is divided although options exclude it. The invalid field is `options`."""


def with_field(text: str, error: InvalidRequestError) -> InvalidRequestError:
    """The error of a text, with the name of the text, such as `texts[2]`. This is also the invalid field, unless the
    error names another field."""
    message = f"{text}: {error}"
    if isinstance(error, SplitError):
        return InvalidRequestError(message, error.violations)
    return type(error)(message, [Violation(text, message)])


class TextBuilder:
    """The translation of one text while it is made, of the translations of its parts in their order."""

    def __init__(self, split: SplitText, *, segments: bool, keep: Sequence[str] = ()) -> None:
        """segments: with the sentences. keep: see `DocumentBuilder`."""
        self._split = split
        self._segments = segments
        self._whole: Translation | None = None
        self._builder = DocumentBuilder(split.target_language, keep)

    def add(self, part: Part, translation: Translation | None) -> None:
        """Adds a part. translation: None if it is copied."""
        if translation is None:
            self._builder.copy(part.piece.source)
        elif self._split.whole:
            self._whole = with_segment(self._split, translation) if self._segments else translation
        else:
            self._builder.collect(part.piece, translation)

    def translation(self) -> Translation:
        """The whole translation."""
        return self._whole or self._builder.translation(segments=self._segments)


def with_segment(split: SplitText, translation: Translation) -> Translation:
    """The translation of a text that was not divided, with its one segment. A text that is blank or copied has no
    segment."""
    if translation.blank:
        return translation
    begin, end = split.worded()
    head = split.text[len(split.own) : begin].lstrip()
    tail = split.text[end:].rstrip()
    segment = Segment(
        begin, end, len(head), len(translation.text) - len(tail), translation.score, translation.source_tokens,
        translation.target_tokens, translation.hit_max_length, translation.tokens, translation.source_pieces,
        translation.much_shorter, translation.mostly_unknown,
    )  # fmt: skip
    return replace(translation, segments=(segment,))
