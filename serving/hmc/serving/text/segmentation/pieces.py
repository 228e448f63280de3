"""A text as pieces: sentences to translate, and what is copied. All pieces together are the text.

Running text that was wrapped at a column is read as if it had not been. A sentence that the model has no room for is
divided at clauses.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hmc.serving.text.segmentation.lines import Line, Span, has_letter, lines, stripped
from hmc.serving.text.segmentation.sentences import sentences

PLACES = (
    re.compile(r"(?<=[;:–—])(?=\s)|(?=\s[–—]\s)"),
    re.compile(r"(?<=,)(?=\s)|(?<=[،、，])"),
    re.compile(r"(?=\s)"),
)
"""Where a sentence is divided: after semicolons, colons and at dashes; else after commas; else at white space."""


def clauses(text: str, fits: Callable[[str], bool]) -> Iterator[Span]:
    """Yields parts of `text`, in order and without the white space around them, each of which fits. Everything between
    them is white space. fits: tells whether a text has room; a single character always counts as one that has.

    Each part is as long as can be, but ends at a clause where one ends in its second half, else after a word where it
    can, else anywhere.
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
    low, step = 1, 64
    while fits(text[begin : begin + step]) and begin + step < len(text):
        low, step = step, 2 * step
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
"""Text that is wrapped has lines of at least this many characters."""
MAX_BLOCK = 5000
"""Characters of the longest block of several lines."""
MAX_LINES = 200
"""Lines over which the column is sought at which text is wrapped."""
ENDS = ".!?:;…。！？"
"""Characters after which a line that begins in lower case is not the rest of the line before."""


def blocks(text: str) -> Iterator[tuple[Span, ...]]:
    """Yields the spans of `text` that are read together, with a blank in place of what lies between two of them.

    A line goes on in the next one if that begins in lower case, or if its first word would have gone beyond the longest
    line of the paragraph.
    """
    paragraph: list[Line] = []
    for line in lines(text):
        if paragraph and (not _may_follow(paragraph[-1], line) or len(paragraph) >= MAX_LINES):
            yield from _linked(text, paragraph)
            paragraph = []
        if line.closes:
            yield from ((span,) for span in line.spans)
        elif line.spans:
            paragraph.append(line)
    yield from _linked(text, paragraph)


def _may_follow(before: Line, line: Line) -> bool:
    return bool(line.spans) and not (line.opens or line.closes) and line.quote == before.quote


def _linked(text: str, paragraph: list[Line]) -> Iterator[tuple[Span, ...]]:
    width = max((line.spans[0][1] - line.begin for line in paragraph), default=0)
    block: list[Span] = []
    before = None
    for line in paragraph:
        span = line.spans[0]
        if before and (span[1] - block[0][0] > MAX_BLOCK or not _goes_on(text, before, line, width)):
            yield tuple(block)
            block = []
        block.append(span)
        before = line
    if block:
        yield tuple(block)


def _goes_on(text: str, before: Line, line: Line, width: int) -> bool:
    """Whether the sentence at the end of `before` may go on in `line`. width: of the longest line of the paragraph."""
    begin, end = line.spans[0]
    last = before.spans[0][1]
    if text[begin].islower() and text[last - 1] not in ENDS:
        return True
    first = len(text[begin : min(end, begin + width)].split(maxsplit=1)[0])
    return width >= NARROWEST and last - before.begin + 1 + first > width


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
        made, at = [], 0
        free = _free_blanks(translation, keep)
        for place, mark in self.breaks:
            wanted = len(translation) * place // len(self.text)
            nearest, first = bisect_left(free, wanted), bisect_left(free, at)
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
    end, free = 0, list[int]()
    for n, character in enumerate(translation):
        end = max(end, reach.get(n, 0))
        if character == " " and n >= end:
            free.append(n)
    return free


def pieces(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[Piece]:
    """Yields the pieces of a text, copied ones and sentences; no two copied ones follow one another.

    language: of the text, a BCP 47 tag. fits: tells whether the model has room for a sentence. One that does not fit is
    divided at its line breaks, and then into clauses.
    """
    at = 0
    for sentence in _sentences(text, language, fits):
        if sentence.begin > at:
            yield Piece(at, text[at : sentence.begin])
        yield sentence
        at = sentence.end
    if at < len(text):
        yield Piece(at, text[at:])


def _sentences(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[Piece]:
    for block in blocks(text):
        joined = " ".join(text[begin:end] for begin, end in block)
        within = _Within(block)
        for span in sentences(joined, language):
            if not has_letter(joined, span):
                continue
            parts = within.parts(span)
            whole = _piece(text, parts)
            if fits(whole.text or ""):
                yield whole
                continue
            for begin, end in parts:
                for first, last in clauses(text[begin:end], fits):
                    if not has_letter(text, (begin + first, begin + last)):
                        continue
                    yield Piece(begin + first, text[begin + first : begin + last], text[begin + first : begin + last])


class _Within:
    """Where the spans of a joined block lie in the text. Each line is looked at once for all spans, and once more for
    each span that ends in it."""

    def __init__(self, block: Sequence[Span]) -> None:
        self._block = block
        self._line, self._at = 0, 0
        """The line in which the last span ended, and its offset in the joined block."""

    def parts(self, span: Span) -> list[Span]:
        """The parts of the text that a span covers, which begins after the span of the call before."""
        found = []
        while self._line < len(self._block):
            begin, end = self._block[self._line]
            first, last = max(span[0], self._at), min(span[1], self._at + end - begin)
            if first < last:
                found.append((begin + first - self._at, begin + last - self._at))
            if self._at + end - begin >= span[1]:
                break
            self._at += end - begin + 1
            self._line += 1
        return found


def _piece(text: str, parts: Sequence[Span]) -> Piece:
    breaks, size = [], 0
    for (begin, end), (following, _) in pairwise(parts):
        size += end - begin
        breaks.append((size, text[end:following]))
        size += 1
    joined = " ".join(text[begin:end] for begin, end in parts)
    return Piece(parts[0][0], text[parts[0][0] : parts[-1][1]], joined, tuple(breaks))
