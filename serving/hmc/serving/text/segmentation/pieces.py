"""A text as pieces: sentences to translate, and what is copied. All pieces together are the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hmc.serving.text.segmentation.blocks import blocks
from hmc.serving.text.segmentation.clauses import clauses
from hmc.serving.text.segmentation.lines import Span, has_letter
from hmc.serving.text.segmentation.sentences import sentences


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

    def put_back(self, translation: str) -> str:
        """The translation with the line breaks of the source, each at the blank that is nearest to where it was."""
        assert self.text is not None
        made, at = [], 0
        for place, mark in self.breaks:
            wanted = len(translation) * place // len(self.text)
            around = {translation.rfind(" ", at, wanted), translation.find(" ", max(at, wanted))} - {-1}
            found = min(around, key=lambda blank: abs(blank - wanted), default=len(translation))
            made += [translation[at:found], mark]
            at = min(found + 1, len(translation))
        return "".join([*made, translation[at:]])


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
