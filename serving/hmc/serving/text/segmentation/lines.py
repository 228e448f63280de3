"""The lines of a text: which are copied as they are, and where the words of the others begin and end."""

from __future__ import annotations

import re
import sys
import unicodedata
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
FENCE = re.compile(r"(`{3,20}(?!`)|~{3,20}(?!~))")
"""A longer line of these is a rule."""
TIMES = re.compile(r"[\d:.,]+\s*-->\s*[\d:.,]+")
WEBVTT = re.compile(r"WEBVTT(?!\S)[^\S\r\n]*(-)?")
"""The first line of a file of WebVTT. Its header ends with a blank line."""
NOT_SHOWN = re.compile(r"(?:NOTE|STYLE|REGION)(?!\S)")
"""The first line of a block of WebVTT that is no cue, to the next blank line."""
CUE_TAG = r"(?:<[^<>]{1,200}>|\{\\[^{}]{1,200}\})"
CUE_BEGIN = re.compile(rf"(?:{CUE_TAG}\s*)+")
CUE_END = re.compile(rf"(?:\s*{CUE_TAG})+$")
"""Tags around the text of a cue: `<v Roger>`, `<i>`, `{\\an8}`."""
UNSPACED_SCRIPT = re.compile(
    r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f]"
)
"""Scripts without blanks between words, in which a sentence with an address in it looks like one word."""
EMOJI_PARTS = "\u200d\ufe0e\ufe0f\u20e3\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
"""Joiners, variation selectors and skin tones."""
CELL = re.compile(r"(?:\\.|[^|\t])+")
FIELD = re.compile(r"[^\t]+")


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
    cue: bool = False
    """Whether it is shown as a subtitle: it follows a line of times."""


def lines(text: str) -> Iterator[Line]:
    """Yields the lines of a text, blank ones too."""
    reader = _Lines(text)
    while reader.begin < len(text):
        yield reader.next()


class _Lines:
    """Reads lines, and knows in which block of code or table the next one stands."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.begin = 0
        self._code_end = 0
        """Where the block of code ends in which the next line stands, if it is not before that."""
        self._not_closed = sys.maxsize
        """Length of the shortest mark of tildes that no line closes from here on."""
        self._table = False
        self._title = 0
        """Characters of the line before, if it has words."""
        self._captions = _Captions(text)

    def next(self) -> Line:
        """The line at `begin`, which moves to the one after."""
        text = self._text
        begin = self.begin
        end, self.begin = _line_end(text, begin)
        start = _match(QUOTE, text, begin, end)
        quote = "".join(text[begin:start].split())
        at = _after_bullets(text, start, end)
        cue = self._captions.is_cue(begin, start, end, self.begin)
        if cue is None or begin < self._code_end or self._begins_code(at, end, quote):
            self._title = 0
            self._table = False
            return Line(begin, end, closes=True)
        if cue:
            return _cue(text, begin, end, start)
        self._table = self._is_row(start, end)
        line = _words(text, begin, end, start, at, quote, self._table)
        self._title = end - at if line.spans else 0
        return line

    def _begins_code(self, at: int, end: int, quote: str) -> bool:
        """Whether a block of code begins in a line whose words begin at `at`. It ends with a line of the same mark,
        with the quote in which it stands, or with the text; but tildes without an end are a rule."""
        found = FENCE.match(self._text, at, end)
        if found is None:
            return False
        mark = found[1]
        rest = self._text[found.end() : end].strip()
        if mark[0] == "`" and "`" in rest:
            return False  # code within a line: no fence has a backtick after its mark
        if mark[0] == "~" and not rest and len(mark) > 3 and abs(len(mark) - self._title) <= 2:
            return False  # the line under a heading
        if mark[0] == "~" and not quote and len(mark) >= self._not_closed:
            return False
        closed = self._closing(self.begin, mark, quote)
        if closed is None and mark[0] == "~":
            self._not_closed = len(mark)
            return False
        self._code_end = len(self._text) if closed is None else closed
        return True

    def _closing(self, begin: int, mark: str, quote: str) -> int | None:
        """Where the block of code ends that goes on at `begin`: after its closing fence, or before the first line
        outside its quote. None: nowhere."""
        text = self._text
        while begin < len(text):
            end, following = _line_end(text, begin)
            start = _match(QUOTE, text, begin, end)
            inside = "".join(text[begin:start].split())
            if not inside.startswith(quote):
                return begin
            found = FENCE.match(text, start, end) if inside == quote else None
            if found and found[1].startswith(mark) and not text[found.end() : end].strip():
                return following
            begin = following
        return len(text) if quote else None

    def _is_row(self, start: int, end: int) -> bool:
        """Whether a line is a row of a table: it begins with a bar, or has bars and is above or below a rule."""
        if self._text.startswith("|", start):
            return True
        if "|" not in self._text[start:end]:
            return False
        if self._table:
            return True
        rule_end, _ = _line_end(self._text, self.begin)
        rule = self._text[_match(QUOTE, self._text, self.begin, rule_end) : rule_end]
        return "|" in rule and "-" in rule and not rule.strip(" \t:|-")


class _Captions:
    """Knows which lines of subtitles are shown. It gets all lines of the text in their order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_webvtt = False
        self._hidden = False
        self._cue = False
        self._first = True
        """Whether this is WebVTT; whether the block in which the next line stands is copied; whether it is a cue, after
        its times; whether the line is the first of a block."""

    def is_cue(self, begin: int, start: int, end: int, following: int) -> bool | None:
        """Whether a line is text of a cue; None: it is copied. start: the first character that is not white space.
        following: where the next line begins."""
        text = self._text
        if TIMES.match(text, start, end):
            self._hidden = False
            self._cue = True
            self._first = False
            return None
        if start >= end:
            self._hidden = False
            self._cue = False
            self._first = True
            return False
        first = self._first
        self._first = False
        if first and (header := WEBVTT.match(text, start, end)):
            # "WEBVTT is a format." may be a sentence
            self._hidden = header.end() == end or header[1] is not None or "-->" in text
            self._is_webvtt = self._is_webvtt or self._hidden
        elif first and self._is_webvtt:
            next_end, _ = _line_end(text, following)
            if TIMES.match(text, following, next_end):
                return None  # the name of a cue
            self._hidden = NOT_SHOWN.match(text, begin, end) is not None
        return None if self._hidden else self._cue


def _line_end(text: str, begin: int) -> Span:
    """Where the line ends that begins at `begin`, and where the next one begins."""
    found = LINE_END.search(text, begin)
    return found.span() if found else (len(text), len(text))


def _after_bullets(text: str, at: int, end: int) -> int:
    while (after := at if MONTH.match(text, at, end) else _match(BULLET, text, at, end)) > at:
        at = after
    return at


def _words(text: str, begin: int, end: int, start: int, at: int, quote: str, row: bool) -> Line:
    """A line of words. start, at: after its quote marks, and after its bullets. row: it is a row of a table."""
    heading = _match(HEADING, text, at, end)
    span = stripped(text, heading, end)
    if not has_letter(text, span) or _is_address(text[slice(*span)]):
        return Line(begin, end, quote=quote, opens=True, closes=True)
    table = row or text[span[0]] == "|"
    if table or "\t" in text[slice(*span)]:
        cells = [stripped(text, *cell.span()) for cell in (CELL if table else FIELD).finditer(text, *span)]
        spans = tuple(cell for cell in cells if has_letter(text, cell))
        return Line(begin, end, spans, quote, opens=True, closes=True)
    return Line(begin, end, (span,), quote, opens=at > start or heading > at, closes=heading > at)


def _cue(text: str, begin: int, end: int, start: int) -> Line:
    """A line of a cue of subtitles: tags around it are copied, and the dash before what one of several persons says."""
    words = _match(CUE_BEGIN, text, start, end)
    at = _after_bullets(text, words, end)
    span = stripped(text, _match(CUE_BEGIN, text, at, end), end)
    tags = CUE_END.search(text, *span)
    if tags:
        span = stripped(text, span[0], tags.start())
    if not has_letter(text, span):
        return Line(begin, end, opens=True, closes=True)
    return Line(begin, end, (span,), opens=at > words, cue=True)


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


def without_symbols(text: str, begin: int, end: int) -> Span:
    """The part of `text` from `begin` to `end` without the emoji, arrows and other symbols at its ends, and without the
    white space beside them. Vocabularies have few symbols, and a model turns unknown ones into words."""
    while end > begin and _is_symbol(text[end - 1]):
        begin, end = stripped(text, begin, end - 1)
    while begin < end and _is_symbol(text[begin]):
        begin, end = stripped(text, begin + 1, end)
    return begin, end


def _is_symbol(character: str) -> bool:
    """Whether it is a symbol such as an emoji, or a part of one. Those before U+2190, such as `°` and `©`, belong to
    the words beside them."""
    if character < "\u2190" and character not in EMOJI_PARTS:
        return False
    return character in EMOJI_PARTS or "\u2190" <= character <= "\u21ff" or unicodedata.category(character) == "So"


def _blank(character: str) -> bool:
    return character.isspace() or character in BLANKS


def _match(pattern: re.Pattern[str], text: str, begin: int, end: int) -> int:
    """Where the pattern ends that begins at `begin`; `begin` if it does not match."""
    found = pattern.match(text, begin, end)
    return found.end() if found else begin
