"""Lines that belong together: running text that was wrapped at a column is read as if it had not been."""

from __future__ import annotations

from collections.abc import Iterator

from hmc.serving.text.segmentation.lines import Line, Span, lines

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
