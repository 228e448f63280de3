"""The lines of a text: which are copied as they are, and where the words of the others begin and end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

Span = tuple[int, int]
"""Begin and end of a part of a text, in code points."""

BLANKS = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\ufeff\u200b\u2028\u2029"
LINE_END = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
QUOTE = re.compile(r"[\s\ufeff]*(?:>[^\S\r\n]?)*\s*")
BULLET = re.compile(r"(?:[-*+•‣◦–—]|\(?\d{1,3}[.)]|\(?[a-z]\))\s+(?:\[[ xX]\]\s+)?")
HEADING = re.compile(r"#{1,6}\s+")
MONTH = re.compile(
    r"\d{1,2}\.\s+(?:Jan|Feb|März|Apr|Mai|Jun|Jul|Aug|Sep|Okt|Nov|Dez|Jahrhundert|Jh|Weltkrieg)", re.IGNORECASE
)
"""A German date or ordinal at the beginning of a line, which is no item of a list."""
FENCE = re.compile(r"(`{3,}|~{3,})")
TIMES = re.compile(r"[\d:.,]+\s*-->\s*[\d:.,]+|WEBVTT\b")
UNSPACED_SCRIPT = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60]"
)
"""Scripts without blanks between words, in which a sentence with an address in it looks like one word."""
CELL, FIELD = re.compile(r"(?:\\.|[^|\t])+"), re.compile(r"[^\t]+")


@dataclass(frozen=True)
class Line:
    """A line: the parts of it that are translated. All else of it is copied: white space, quote marks, bullets."""

    begin: int
    end: int
    """Before the line break."""
    spans: tuple[Span, ...] = ()
    """Parts to translate: none, one, or one for each cell or field."""
    quote: str = ""
    """Its quote marks without white space, such as `>>`."""
    opens: bool = False
    """Whether it begins with a bullet, a number of a list or a heading's mark, so that it does not go on with the line
    before."""
    closes: bool = False
    """Whether the next line cannot go on with it: it is a heading, a row of a table, or copied as a whole."""


def lines(text: str) -> Iterator[Line]:
    """Yields the lines of a text, blank ones too."""
    fence = ""
    begin = 0
    while begin < len(text):
        found = LINE_END.search(text, begin)
        end, following = (found.start(), found.end()) if found else (len(text), len(text))
        line, fence = _line(text, begin, end, fence)
        yield line
        begin = following


def _line(text: str, begin: int, end: int, fence: str) -> tuple[Line, str]:
    """One line. fence: the mark that opened the block of code in which it stands, which is returned as it is after."""
    quoted = _match(QUOTE, text, begin, end)
    found = FENCE.match(text, quoted, end)
    if found is not None and found[1][0] == "`" and "`" in text[found.end() : end]:
        found = None  # code within a line: no fence has a backtick after its mark
    if fence:
        closing = found is not None and found[1].startswith(fence) and not text[found.end() : end].strip()
        return Line(begin, end, closes=True), "" if closing else fence
    if found is not None:
        return Line(begin, end, closes=True), found[1]
    if TIMES.match(text, quoted, end):
        return Line(begin, end, closes=True), ""
    return _words(text, begin, end, quoted), ""


def _words(text: str, begin: int, end: int, start: int) -> Line:
    quote = "".join(text[begin:start].split())
    at = start
    while (after := at if MONTH.match(text, at, end) else _match(BULLET, text, at, end)) > at:
        at = after
    marked = at > start
    heading = _match(HEADING, text, at, end)
    span = stripped(text, heading, end)
    if not has_letter(text, span) or _is_address(text[slice(*span)]):
        return Line(begin, end, quote=quote, opens=True, closes=True)
    table = text[span[0]] == "|"
    if table or "\t" in text[slice(*span)]:
        cells = [stripped(text, *cell.span()) for cell in (CELL if table else FIELD).finditer(text, *span)]
        spans = tuple(cell for cell in cells if has_letter(text, cell))
        return Line(begin, end, spans, quote, opens=True, closes=True)
    return Line(begin, end, (span,), quote, opens=marked or heading > at, closes=heading > at)


def _is_address(part: str) -> bool:
    """Whether a part of a line is one URL or e-mail address, in angle brackets or not. Its time grows with the length
    of the part, which no regular expression of this rule does."""
    if len(part.split(maxsplit=1)) > 1:
        return False
    url = part.removeprefix("<")
    scheme, mark, rest = url.partition("://")
    if mark and rest and scheme.isascii() and scheme.replace("_", "a").isalnum():
        return True
    if UNSPACED_SCRIPT.search(part):
        return False
    name, _, domain = part.partition("@")
    is_mail = bool(name) and "@" not in domain and "." in domain[1:-1]
    return is_mail or (url.startswith("www.") and len(url) > len("www."))


def stripped(text: str, begin: int, end: int) -> Span:
    """The part of `text` from `begin` to `end` without the white space around it; empty if there is nothing else."""
    while end > begin and _blank(text[end - 1]):
        end -= 1
    while begin < end and _blank(text[begin]):
        begin += 1
    return begin, end


def has_letter(text: str, span: Span) -> bool:
    """Whether there is a letter to translate. Numbers, rules, emoji and the like have none and are copied."""
    return any(map(str.isalpha, text[slice(*span)]))


def _blank(character: str) -> bool:
    return character.isspace() or character in BLANKS


def _match(pattern: re.Pattern[str], text: str, begin: int, end: int) -> int:
    """Where the pattern ends that begins at `begin`; `begin` if it does not match."""
    found = pattern.match(text, begin, end)
    return found.end() if found else begin
