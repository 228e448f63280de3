"""Sentences of running text: the library `sentencex`, with rules for what it divides that belongs together."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

from hmc.serving.text.segmentation.lines import Span, stripped

log = logging.getLogger(__name__)

MAX_PART = 4000
"""Characters that the library gets at once: its time grows with their square where quotation marks abound."""
MAX_TAIL = 200
"""Characters at the end of a sentence by which it is known whether the next one belongs to it."""
SENTENCE_END = re.compile(r"[.!?…。！？]['\"’”»)\]]*\s+|[。！？]")
NUMBERED = re.compile(
    r"(?:^|[\s(])(?:vols?|nos?|nr|figs?|abb|kap|ch|chap|sect?|art|pp?|s|bd|abs|tab|ziff|eq|tel|hr|z|anm|cf|vgl)\.\s*$",
    re.IGNORECASE,
)
"""Abbreviations before a number: `Vol. 2`, `Abb. 3`."""
ORDINAL = re.compile(
    r"(?:^|\b(?:d(?:er|ie|as|em|en|es)|[iav]m|vom|zu[mr]|beim|ins|ab|bis|seit|und|oder|auf|(?:ihr|sein|mein|unser|jed|"
    r"ein|kein|dies)\w*)\s+)\d{1,3}\.\s*$",
    re.IGNORECASE,
)
"""A number of up to three digits after a word that goes before ordinals, and not before amounts: `der 2. Weltkrieg`."""
ANY_ORDINAL = re.compile(r"\b\d{1,3}\.\s*$")
AFTER_ORDINAL = re.compile(r"(?:Jh|Jahrhundert|Weltkrieg|Auflage|Klasse)\b")
FRENCH_TITLE = re.compile(r"(?:^|[\s(])(?:MM?|Mmes?|Mlles?|Mgr|Dr|Drs|Pr|Me|Ste?)\.\s*$")
OPEN_END = re.compile(r"[.…]['\"’”»)\]]*\s*$|['\"’”»]\s*$")


def sentences(text: str, language: str) -> Iterator[Span]:
    """Yields the sentences of a text without line breaks, in order and without the white space around them. Everything
    between them is white space. language: a BCP 47 tag. A language without rules of its own gets the rules of
    English."""
    for begin, end in _parts(text):
        at = begin
        for size in _sizes(text[begin:end], language.partition("-")[0].lower()):
            span = stripped(text, at, at + size)
            if span[0] < span[1]:
                yield span
            at += size


def _parts(text: str) -> Iterator[Span]:
    """Yields the text whole, or in parts of at most MAX_PART characters that end where a sentence or a word does."""
    begin = 0
    while len(text) - begin > MAX_PART:
        ends = [found.end() for found in SENTENCE_END.finditer(text, begin, begin + MAX_PART)]
        words = text.rfind(" ", begin, begin + MAX_PART) + 1
        end = begin + MAX_PART
        if ends:
            end = ends[-1]
        elif words > begin:
            end = words
        yield begin, end
        begin = end
    yield begin, len(text)


def _sizes(text: str, language: str) -> list[int]:
    """Characters of each sentence with the white space after it; they add up to the whole text."""
    plain = re.sub(r"[^\S ]", " ", text)
    sizes: list[int] = []
    at = 0
    for part in _divide(plain, language):
        if sizes and _belongs(_tail(plain, at - sizes[-1], at), part, language):
            sizes[-1] += len(part)
        else:
            sizes.append(len(part))
        at += len(part)
    return sizes


def _tail(text: str, begin: int, end: int) -> str:
    """The last characters of a sentence from `begin` to `end`: all that the rules read. `_` stands for what is left
    out, so that no rule takes their first one for the beginning of a sentence or of a word."""
    return text[begin:end] if end - begin <= MAX_TAIL else "_" + text[end - MAX_TAIL : end]


def _divide(text: str, language: str) -> list[str]:
    from sentencex import segment

    try:
        parts: list[str] = segment(language, text)
    except Exception as error:  # noqa: BLE001 - any error of the library costs its division, never the text
        return _whole(text, error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return _whole(text, error)
    return parts if "".join(parts) == text else _whole(text, None)


def _whole(text: str, error: BaseException | None) -> list[str]:
    kind = "its parts were another text" if error is None else type(error).__name__  # a message may quote the text
    log.warning("sentencex could not divide a text of %d characters, which stays whole: %s", len(text), kind)
    return [text]


def _belongs(before: str, after: str, language: str) -> bool:
    """Whether two parts are one sentence."""
    first = after.lstrip()[:1]
    if first.islower() and OPEN_END.search(before):
        return True
    if first.isdigit() and NUMBERED.search(before):
        return True
    if language == "de" and first.isalpha():
        known = ANY_ORDINAL.search(before) and (AFTER_ORDINAL.match(after))
        return bool(known or ORDINAL.search(before))
    return language == "fr" and FRENCH_TITLE.search(before) is not None
