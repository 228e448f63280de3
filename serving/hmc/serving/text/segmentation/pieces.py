"""A text as pieces: sentences to translate, and what is copied. All pieces together are the text.

Lines stay apart. Running text that was wrapped at a column is read as if it had not been. A sentence that the model has
no room for is divided at clauses.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hmc.serving.text.segmentation.lines import Line, Span, has_letter, lines, stripped, without_symbols
from hmc.serving.text.segmentation.sentences import sentences

PLACES = (
    re.compile(r"(?<=[;:–—])(?=\s)|(?=\s[–—]\s)"),
    re.compile(r"(?<=,)(?=\s)|(?<=[،、，])"),
    re.compile(r"(?=\s)"),
)
"""Where a sentence is divided: after semicolons, colons and at dashes; else after commas; else at white space."""


def clauses(text: str, fits: Callable[[str], bool]) -> Iterator[Span]:
    """Yields parts of `text` that fit, in order and without the white space around them. Everything between them is
    white space. fits: tells whether a text has room; a single character always counts as one that has.

    Each part is as long as possible. It ends at a clause if one ends in its second half, or else after a word if
    possible, or else anywhere.
    """
    begin, length = stripped(text, 0, len(text))
    text = text[:length]
    while begin < length:
        most = _most(text, begin, fits)
        end = begin + most if begin + most == len(text) else _cut(text, begin, begin + most)
        span = stripped(text, begin, end)
        if span[0] < span[1]:
            yield span
        begin, _ = stripped(text, end, length)


def _most(text: str, begin: int, fits: Callable[[str], bool]) -> int:
    """Characters from `begin` that fit, and about the most that do."""
    low = 1
    step = 64
    while fits(text[begin : begin + step]) and begin + step < len(text):
        low = step
        step = 2 * step
    high = min(step, len(text) - begin)
    if fits(text[begin : begin + high]):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(text[begin : begin + middle]) else (low, middle)
    return low


def _cut(text: str, begin: int, end: int) -> int:
    """The best place for an end in the second half of a part that may end at `end`."""
    for pattern in PLACES:
        found = pattern.finditer(text, (begin + end) // 2 + 1, min(len(text), end + 3))
        places = [place.start() for place in found if place.start() <= end]
        if places:
            return places[-1]
    return end


NARROWEST = 50
NARROW = 30
"""Text that is wrapped has lines of at least this many characters. The second bound holds where lower case and a
sentence end say so too."""
MAX_BLOCK = 5000
"""Characters of the longest block of several lines."""
MAX_LINES = 200
"""Lines over which the column is sought at which text is wrapped."""
GREETING = 80
"""Characters before a line among which a greeting is sought."""
MANY = 8
"""Line ends of running text that need no sentence end at the last line, such as a part of a very long paragraph."""
ENDS = ".!?:;…。！？"
"""Characters after which a line that begins in lower case is not the rest of the line before."""
PROSE_END = re.compile(r"[.!?:;,…。！？]['\"’”»)\]*_]*$")
"""The end of a paragraph of running text. Items of a list rarely have one at the last item alone."""
HYPHENS = "-\u2010\u00ad"
HANGING = re.compile(r"(?:und|oder|bzw|bis|and|or|to|et|ou|y|o|e|en|of)\b")
"""After these a hyphen at a line's end is not of a word that was divided: `Vor- und Nachteile`."""


@dataclass(frozen=True)
class LinePart:
    """A part of a line in a block."""

    begin: int
    end: int
    glue: str = " "
    """What stands between this part and the next one when the block is read: nothing, where a word was divided."""


Block = tuple[LinePart, ...]


def blocks(text: str) -> Iterator[Block]:
    """Yields the parts of lines of `text` that are read together.

    Lines stay apart unless there is evidence that running text was wrapped, see `_Paragraph.wrapped`.
    """
    paragraph: list[Line] = []
    for line in lines(text):
        if paragraph and (not _may_follow(paragraph[-1], line) or len(paragraph) >= MAX_LINES):
            yield from _Paragraph(text, paragraph).blocks()
            paragraph = []
        if line.closes:
            yield from ((LinePart(*span),) for span in line.spans)
        elif line.spans:
            paragraph.append(line)
    if paragraph:
        yield from _Paragraph(text, paragraph).blocks()


def _may_follow(before: Line, line: Line) -> bool:
    if not line.spans or line.opens or line.closes:
        return False
    return line.quote == before.quote and line.cue == before.cue


class _Paragraph:
    """Lines that follow each other without a blank line, a bullet or another mark between them."""

    def __init__(self, text: str, paragraph: Sequence[Line]) -> None:
        self._text = text
        self._lines = paragraph
        widths = sorted((line.spans[0][1] - line.begin for line in paragraph), reverse=True)
        near = (wide for wide, next_one in pairwise(widths) if next_one > 0.8 * wide)
        self._width = next(near, widths[0])
        """The column at which the text was wrapped, if it was: the length of the longest line, or of the next ones if
        that one is much longer, such as an address."""

    def blocks(self) -> Iterator[Block]:
        """Yields the blocks of the paragraph in their order."""
        begin = 0
        for end in range(1, len(self._lines) + 1):
            if end < len(self._lines) and (self._is_full(end) or self._continues(end)):
                continue
            if end - begin > 1 and self._wrapped(begin, end):
                yield from self._joined(begin, end)
            else:
                yield from ((LinePart(*line.spans[0]),) for line in self._lines[begin:end])
            begin = end

    def _wrapped(self, begin: int, end: int) -> bool:
        """Whether the lines from `begin` to `end` are running text that was wrapped. Most line ends leave no room for
        the next word, some lines go on in lower case, and there is more that a list does not have: a sentence end at
        the last line, an indentation below a bullet, or many lines. Lines of which the first one begins in lower case
        are a list, unless they follow a greeting or the last one is short.

        Two lines of a cue of subtitles are wrapped if the second begins in lower case.
        """
        first = self._lines[begin]
        following = range(begin + 1, end)
        full = sum(map(self._is_full, following))
        continued = sum(map(self._continues, following))
        if first.cue:
            return continued > 0
        if 2 * full <= len(following) or self._width < NARROW:
            return False
        ends = PROSE_END.search(self._line_text(end - 1)[-20:]) is not None
        hangs = first.opens and all(line.spans[0][0] - line.begin > 1 for line in self._lines[begin + 1 : end])
        is_list = not hangs and self._line_text(begin)[0].islower() and not self._follows_greeting(begin)
        if is_list or not continued:
            # Of two lines, the longer one has no room for the next word in any case. The last line of a paragraph is
            # as a rule shorter than the others, and that of a list is not.
            is_short = 2 * len(self._line_text(end - 1)) < self._width
            return ends and full > 1 and self._width >= NARROWEST and (is_short or (continued > 0 and full > 2))
        if ends or hangs:
            return ends or self._width >= NARROWEST
        return self._width >= NARROWEST and len(following) >= MANY and 2 * continued >= len(following)

    def _follows_greeting(self, index: int) -> bool:
        """Whether the text before a line ends with a comma, after which letters begin in lower case in German."""
        begin = self._lines[index].begin
        first, last = stripped(self._text, max(0, begin - GREETING), begin)
        return self._text[first:last].endswith(",")

    def _joined(self, begin: int, end: int) -> Iterator[Block]:
        block: list[LinePart] = []
        for index in range(begin, end):
            first, last = self._lines[index].spans[0]
            glue = " "
            if index + 1 < end and self._is_divided(index + 1):
                last -= 1
                glue = ""
            if block and last - block[0].begin > MAX_BLOCK:
                yield tuple(block)
                block = []
            block.append(LinePart(first, last, glue))
        yield tuple(block)

    def _line_text(self, index: int) -> str:
        return self._text[slice(*self._lines[index].spans[0])]

    def _is_full(self, index: int) -> bool:
        """Whether the line before had no room for the first word of this one, or ends within a word."""
        before = self._lines[index - 1]
        (begin, end) = self._lines[index].spans[0]
        first = self._text[begin : min(end, begin + self._width)].split(maxsplit=1)[0]
        return self._is_divided(index) or before.spans[0][1] - before.begin + 1 + len(first) > self._width

    def _continues(self, index: int) -> bool:
        """Whether a line begins in lower case, where the line before does not end a sentence."""
        return self._line_text(index)[0].islower() and self._line_text(index - 1)[-1] not in ENDS

    def _is_divided(self, index: int) -> bool:
        """Whether the word at the end of the line before goes on in this line."""
        before = self._line_text(index - 1)[-2:]
        line = self._line_text(index)[:8]
        hyphenated = len(before) > 1 and before[0].isalpha() and before[1] in HYPHENS
        return hyphenated and line[0].islower() and HANGING.match(line) is None


@dataclass(frozen=True)
class Piece:
    """A part of a text."""

    begin: int
    """Its offset in the text, in code points."""
    source: str
    """The part as it stands in the text."""
    text: str | None = None
    """What is translated: the source with a blank in place of each line break. None: the source is copied."""
    breaks: tuple[tuple[int, str], ...] = ()
    """Line breaks within the sentence: (offset in `text`, the break with the indentation and quote marks after it)."""

    @property
    def end(self) -> int:
        """The offset in the text after its last character."""
        return self.begin + len(self.source)

    def put_back(self, translation: str, keep: Sequence[str] = ()) -> str:
        """The translation with the line breaks of the source, each at the blank that is nearest to where it was, and
        none within a phrase of `keep`."""
        if not self.breaks:
            return translation
        assert self.text is not None
        made = []
        at = 0
        free = _free_blanks(translation, keep)
        for place, mark in self.breaks:
            wanted = len(translation) * place // len(self.text)
            nearest = bisect_left(free, wanted)
            first = bisect_left(free, at)
            around = free[max(nearest - 1, first) : max(nearest + 1, first + 1)]
            found = min(around, key=lambda blank: abs(blank - wanted), default=len(translation))
            made += [translation[at:found], mark]
            at = min(found + 1, len(translation))
        return "".join([*made, translation[at:]])


def _free_blanks(translation: str, keep: Sequence[str]) -> list[int]:
    """The places of blanks that are not within a phrase of `keep`."""
    reach = dict[int, int]()  # where phrases begin → the end of the longest of them
    for phrase in keep:
        at = translation.find(phrase) if " " in phrase else -1
        while at >= 0:
            end = at + len(phrase)
            reach[at] = max(reach.get(at, 0), end)
            at = translation.find(phrase, end)
    end = 0
    free = list[int]()
    for n, character in enumerate(translation):
        end = max(end, reach.get(n, 0))
        if character == " " and n >= end:
            free.append(n)
    return free


def pieces(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[Piece]:
    """Yields the pieces of a text, copied ones and sentences; no two copied ones follow one another.

    language: of the text, a BCP 47 tag. fits: tells whether the model has room for a sentence. A sentence that does not
    fit is divided at its line breaks, and then into clauses.
    """
    at = 0
    for sentence in _sentences(text, language, fits):
        if sentence.begin > at:
            yield Piece(at, text[at : sentence.begin])
        yield sentence
        at = sentence.end
    if at < len(text):
        yield Piece(at, text[at:])


WORDS = re.compile(
    r"(?!www\.|WEBVTT)[^\W\d_](?!\))"
    r"(?:(?:[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029\t|`~@:.!?…。！？\u200d\u20e3\u2190-\u2bff\ufe0e\ufe0f\U0001f000-\U0001faff]"
    r"|[.!?…。！？](?=\s*[^\W\d_])|\.(?=\d))*[^\W\d_])?[.,!?…]*"
)
"""A line in which all is translated: it begins and ends with words, and sentences in it too. Most lines are like this,
and to divide them costs more."""


PLAIN_SENTENCE = re.compile(r"(?!WEBVTT)[^\W\d_][\w ,'’-]{0,998}[.!?]?")
"""A text of one sentence for certain: it begins with a letter, and nothing in it can end a sentence, mark a list or a
table, or be an address. Most short texts are like this, and to divide them costs more."""


def has_fractions(text: str) -> bool:
    """Whether a text has numbers that are neither letters nor decimal digits, such as ½, ² or ①. Both patterns take
    them for letters."""
    return not text.isascii() and any(c.isalnum() and not (c.isalpha() or c.isdecimal()) for c in text)


def worded(text: str, language: str) -> Span:
    """The part of a text that is translated if the text is not divided: all from its first sentence to its last one.
    The text before and after it is copied, such as a bullet, a number or an emoji. A text without a sentence is copied
    as a whole; its span is empty."""
    found = runs(text, language)
    return (found[0].begin, found[-1].end) if found else (0, 0)


def runs(text: str, language: str) -> list[Piece]:
    """The parts of a text that are translated if it is not divided into sentences: sentences on one line with blanks
    alone between them are one part. Other text between sentences is copied, such as a tab or an emoji.

    A text of more than MAX_BLOCK characters, which models have no room for, has one part: all from its first sentence.
    """
    begin, end = stripped(text, 0, len(text))
    if WORDS.fullmatch(text, begin, end) and not has_fractions(text):
        return [Piece(begin, text[begin:end], text[begin:end])]
    found: list[Piece] = []
    if end - begin > MAX_BLOCK:
        first = next((piece for piece in pieces(text, language, lambda _: True) if piece.text is not None), None)
        if first is not None:
            found.append(Piece(first.begin, text[first.begin : end], text[first.begin : end]))
        return found
    for piece in pieces(text, language, lambda _: True):
        if piece.text is None:
            continue
        before = found[-1] if found else None
        if before and not before.breaks and not piece.breaks and not text[before.end : piece.begin].strip(" \xa0"):
            both = text[before.begin : piece.end]
            found[-1] = Piece(before.begin, both, both)
        else:
            found.append(piece)
    return found


def _sentences(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[Piece]:
    for block in blocks(text):
        joined = "".join(text[part.begin : part.end] + part.glue for part in block).rstrip(" ")
        within = _Within(block)
        for sentence in sentences(joined, language):
            span = without_symbols(joined, *sentence)
            if not has_letter(joined, span):
                continue
            parts = within.parts(span)
            whole = _piece(text, parts)
            if fits(whole.text or ""):
                yield whole
                continue
            for part in parts:
                for first, last in clauses(text[part.begin : part.end], fits):
                    clause = text[part.begin + first : part.begin + last]
                    if has_letter(clause, (0, len(clause))):
                        yield Piece(part.begin + first, clause, clause)


class _Within:
    """Where the spans of a joined block lie in the text. Each line is looked at once for all spans, and once more for
    each span that ends in it."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._line = 0
        self._at = 0
        """The line in which the last span ended, and its offset in the joined block."""

    def parts(self, span: Span) -> list[LinePart]:
        """The parts of the text that a span covers, which begins after the span of the call before."""
        found = []
        while self._line < len(self._block):
            part = self._block[self._line]
            size = part.end - part.begin
            first = max(span[0], self._at)
            last = min(span[1], self._at + size)
            if first < last:
                begin = part.begin - self._at
                found.append(LinePart(begin + first, begin + last, part.glue))
            if self._at + size >= span[1]:
                break
            self._at += size + len(part.glue)
            self._line += 1
        return found


def _piece(text: str, parts: Sequence[LinePart]) -> Piece:
    breaks = []
    size = 0
    for part, following in pairwise(parts):
        size += part.end - part.begin
        hyphen = 0 if part.glue else 1
        breaks.append((size, text[part.end + hyphen : following.begin]))
        size += len(part.glue)
    joined = "".join(text[part.begin : part.end] + part.glue for part in parts[:-1])
    last = parts[-1]
    return Piece(parts[0].begin, text[parts[0].begin : last.end], joined + text[last.begin : last.end], tuple(breaks))
