"""Phrases that are copied into the translation as they are: numbers stand for them in the source, and what attends to a
number is replaced by its phrase."""

from __future__ import annotations

import asyncio
import math
import re
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from itertools import islice

from hmc.artifact.errors import FailedPreconditionError, InternalServiceError, InvalidRequestError
from hmc.engine.requests.options import DecodeOptions
from hmc.serving.requests.options import Target
from hmc.serving.requests.results import Translation
from hmc.serving.text.segmentation.lines import UNSPACED_SCRIPT

START = "▁"
MARKS = tuple(".,!?;:)]}”»。，！？；：؟،।")
BLANK = re.compile(r"\s*")
AFTER_PHRASE = re.compile(r"[\s.,!?;:)\]}”»]*")
"""What is copied before the first word of a text, and between a phrase and the first word after it."""
LETTER = "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u036f\u0370-\u037d\u0386\u0388-\u0556\u0561-\u0587\u1e00-\u1fff"
"""Letters of scripts whose words stand alone between blanks: Latin, Greek, Cyrillic, Armenian."""
WORD = re.compile(rf"(?:[{LETTER}]+|\d+)(?:_+(?:[{LETTER}]+|\d+))*")
MARK = "\ufdd0"
"""Stands around words where phrases are searched. It is no character."""


def paste(translation: Translation, phrases: Mapping[str, str]) -> str | None:
    """The text of a traced translation with every phrase. phrases: word of the source that stands for it → phrase.

    None if a phrase has no word of its own in the translation, if no word of the source stands for it, and if the
    translation is spelled otherwise than its pieces.
    """
    tokens = [token for token in translation.tokens if token.attention]
    if tokens and not translation.hit_max_length:
        tokens = tokens[:-1]  # EOS
    pieces = [token.piece for token in tokens]
    while pieces and "".join(_plain(pieces)).strip() != translation.text.strip():
        del pieces[0], tokens[0]  # the token of a language
    if any(piece.startswith("<") and piece.endswith(">") for piece in pieces):
        return None  # bytes, unknown tokens
    spans: dict[tuple[int, int], str] = {}
    for word, phrase in phrases.items():
        sources = _positions(translation.source_pieces, word)
        if not sources or not tokens:
            return None
        weights = [sum(token.attention[n] for n in sources) for token in tokens]
        span = _word(pieces, weights.index(max(weights)))
        if span in spans or any(map(UNSPACED_SCRIPT.search, pieces[slice(*span)])):
            return None  # a script without blanks has no words here
        spans[span] = phrase
    written: list[str] = []
    at = 0
    for (first, last), phrase in sorted(spans.items()):
        written += [*_plain(pieces[at:first]), " ", phrase]
        if last < len(pieces) and not pieces[last].startswith((START, *MARKS)):
            written.append(" ")
        at = last
    return "".join([*written, *_plain(pieces[at:])]).strip()


def _plain(pieces: Sequence[str]) -> list[str]:
    return [piece.replace(START, " ") for piece in pieces]


def _positions(pieces: tuple[str, ...], word: str) -> list[int]:
    """The source tokens that spell the first occurrence of `word`."""
    begin = "".join(pieces).find(word)
    positions = []
    at = 0
    for index, piece in enumerate(pieces):
        if begin >= 0 and at < begin + len(word) and at + len(piece) > begin:
            positions.append(index)
        at += len(piece)
    return positions


def _word(pieces: list[str], index: int) -> tuple[int, int]:
    """The word around a token, without the punctuation after it."""
    first = index
    last = index + 1
    while first > 0 and not pieces[first].startswith(START):
        first -= 1
    while last < len(pieces) and not pieces[last].startswith((START, *MARKS)):
        last += 1
    return first, last


Submit = Callable[[str, DecodeOptions, Target], Awaitable[Translation]]
"""Translates one text. Cancelling it cancels the search."""
NUMBERS = ("12", "10", "99", "100", "55", "30", "20", "88", "40", "2014", "1000", "60", "70", "90", "15", "25", "80")
"""What stands for a phrase: models copy round and short numbers more often than anything else that was tried."""
AT_ONCE = 100_000
"""Characters of a text times phrases that are searched in it before the event loop serves others."""
TRIES = 3
"""Numbers that are tried for each phrase, at the same time."""


class Keeper:
    """Copies phrases."""

    def __init__(self, phrases: Sequence[str]) -> None:
        self._phrases = tuple(dict.fromkeys(phrases))

    async def translate(self, submit: Submit, text: str, options: DecodeOptions, target: Target) -> Translation:
        """Translates a text with every phrase in it.

        1. The model may copy them by itself. 2. Numbers stand for them, and the first translation is taken that has
        each number once. 3. The words that attend most to the numbers give way to the phrases. 4. If the level cannot
        trace attention, the text around the phrases is translated by itself.
        """
        if not self._phrases:
            return await submit(text, options, target)
        phrases, rest = await self._occurrences(text)
        if not phrases:
            return await submit(text, options, target)
        held, _ = await self._occurrences(target.text)
        if not any(map(str.isalpha, "".join(rest))):
            return Translation(_copied(target.text, held, phrases, rest), 0.0, 0, 0)
        clock = _Clock(submit)
        plain = await clock.submit(text, options, target)
        if Counter((await self._occurrences(plain.text))[0]) >= Counter(phrases):
            return plain
        phrases, rest = _without(held, phrases, rest)
        return clock.timed(await self._with_numbers(clock.submit, options, target, phrases, rest)) if phrases else plain

    async def _occurrences(self, text: str) -> tuple[list[str], list[str]]:
        if len(text) * len(self._phrases) > AT_ONCE:
            return await asyncio.to_thread(occurrences, text, self._phrases)
        return occurrences(text, self._phrases)

    async def _with_numbers(
        self, submit: Submit, options: DecodeOptions, target: Target, phrases: Sequence[str], rest: Sequence[str]
    ) -> Translation:
        free = [number for number in NUMBERS if number not in "".join(rest) and number not in target.text]
        choices = [free[n:] + free[:n] for n in range(min(TRIES, len(free)))] if len(phrases) <= len(free) else []
        masked = [_interleave(rest, chosen) for chosen in choices]
        for chosen, done in zip(
            choices, await asyncio.gather(*(submit(m, options, target) for m in masked)), strict=True
        ):
            if all(_appears_once(number, done.text) for number in islice(chosen, len(phrases))):
                return replace(done, text=_replaced(done.text, dict(zip(chosen, phrases, strict=False))))
        if choices:
            try:
                traced = await submit(masked[0], replace(options, alignment=True), target)
            except (FailedPreconditionError, InvalidRequestError):
                pass  # the level, or sampling, excludes that attention is traced
            else:
                pasted = paste(traced, dict(zip(choices[0], phrases, strict=False)))
                if pasted is not None and pasted.startswith(target.text.strip()):
                    return replace(traced, text=pasted, tokens=(), source_pieces=())
        return await _translate_between(submit, rest, options, target, phrases)


class _Clock:
    """Times the searches of one text together: they begin after each other."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._zero = time.perf_counter()
        self._begin = math.inf
        self._end = 0.0

    async def submit(self, text: str, options: DecodeOptions, target: Target) -> Translation:
        """Passes a text on."""
        sent = time.perf_counter() - self._zero
        done = await self._submit(text, options, target)
        self._begin = min(self._begin, sent + done.queue_s)
        self._end = max(self._end, sent + done.queue_s + done.compute_s)
        return done

    def timed(self, translation: Translation) -> Translation:
        """The translation with the time until the first search computed, and from there to the end of the last."""
        return replace(translation, queue_s=self._begin, compute_s=self._end - self._begin)


def _without(held: Sequence[str], phrases: Sequence[str], rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """The phrases that are still to be written, where the target prefix has `held`, and what lies around them."""
    written = Counter(held)
    names = list[str]()
    parts = [rest[0]]
    for phrase, after in zip(phrases, rest[1:], strict=True):
        if written[phrase]:
            written[phrase] -= 1
            parts[-1] += phrase + after
        else:
            names.append(phrase)
            parts.append(after)
    return names, parts


def _copied(prefix: str, held: Sequence[str], phrases: Sequence[str], rest: Sequence[str]) -> str:
    """A text without words of its own: its phrases and what lies between them, after the target prefix, which has the
    phrases `held`."""
    written = Counter(held)
    text = rest[0]
    for phrase, after in zip(phrases, rest[1:], strict=True):
        if written[phrase]:
            written[phrase] -= 1
        else:
            text += phrase
        text += after
    if not prefix or not text.strip():
        return prefix or text
    if prefix[-1].isspace() or UNSPACED_SCRIPT.match(prefix[-1]) or AFTER_PHRASE.fullmatch(text[0]):
        return prefix + text
    return f"{prefix} {text}"


def _marked(text: str) -> str:
    return WORD.sub(rf"{MARK}\g<0>{MARK}", text)


class _Searched:
    """A text in which phrases are searched, each in a time that grows with the text alone."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._marked = _marked(text)
        self._ends = [at for word in WORD.finditer(text) for at in word.span()]
        self._marks = [at + before for before, at in enumerate(self._ends)]

    def find(self, phrase: str, start: int = 0) -> int:
        """Where the phrase stands next; -1 if nowhere. A phrase that begins and ends like a word is found only as whole
        words: "Go" does not stand in "Good", nor "user" in "user_id"."""
        if (at := self.text.find(phrase, start)) < 0 or not (WORD.match(phrase) and WORD.match(phrase[-1])):
            return at  # most phrases of a long list do not occur
        marked = self._marked.find(_marked(phrase), start + bisect_left(self._ends, start))
        return marked - bisect_left(self._marks, marked) if marked >= 0 else -1


def occurrences(text: str, phrases: Sequence[str]) -> tuple[list[str], list[str]]:
    """The phrases in a text in their order, and what lies before, between and after them. If phrases overlap, the first
    one counts; if they begin at the same place, the longest one counts. See `_Searched.find`.

    Each phrase is searched by itself, in a time that grows with the text: a regular expression of all phrases would try
    every one of them at every place.
    """
    searched = _Searched(text)
    places = [(at, -len(phrase), phrase) for phrase in phrases if (at := searched.find(phrase)) >= 0]
    heapify(places)
    found = list[str]()
    rest = list[str]()
    end = 0
    while places:
        at, _, phrase = places[0]
        if at >= end:
            found.append(phrase)
            rest.append(text[end:at])
            end = at + len(phrase)
        if (following := searched.find(phrase, end)) >= 0:
            heapreplace(places, (following, -len(phrase), phrase))
        else:
            heappop(places)
    return found, [*rest, text[end:]]


def _interleave(rest: Sequence[str], between: Sequence[str]) -> str:
    """rest[0] + between[0] + rest[1] + …"""
    return "".join(part for pair in zip(rest, [*between[: len(rest) - 1], ""], strict=True) for part in pair)


def _appears_once(number: str, text: str) -> bool:
    """Whether a text has the number exactly once, and as a word of its own."""
    written = re.findall(rf"(?<!\d){number}(?!\d)", text)
    return len(written) == 1 and re.search(rf"(?<![{LETTER}\d_.,]){number}(?![{LETTER}\d_]|[.,]\d)", text) is not None


def _replaced(text: str, phrases: dict[str, str]) -> str:
    return re.sub(rf"(?<!\d)(?:{'|'.join(phrases)})(?!\d)", lambda number: phrases[number[0]], text)


def _gap(source: str, translation: str) -> str:
    """The blank beside a phrase, where the source's script has none and the translation's has."""
    without = UNSPACED_SCRIPT.match
    return " " if without(source) and translation.isalnum() and not without(translation) else ""


async def _translate_between(
    submit: Submit, rest: Sequence[str], options: DecodeOptions, target: Target, phrases: Sequence[str]
) -> Translation:
    """The parts between the phrases are translated one by one, so they lose what they say of each other. The target
    prefix begins the first. Marks after a phrase are copied: models drop them where they begin a text."""
    worded = [any(map(str.isalpha, part)) for part in rest]
    leads = [(AFTER_PHRASE if number else BLANK).match(part) for number, part in enumerate(rest)]
    begins = [lead.end() if lead else 0 for lead in leads]
    sent = [part[begin:] for part, begin, words in zip(rest, begins, worded, strict=True) if words]
    targets = [target, *(Target() for _ in sent[1:])]
    asked = (submit(part.strip(), options, each) for part, each in zip(sent, targets, strict=True))
    done = iter(await asyncio.gather(*asked))
    parts: list[str] = []
    used: list[Translation] = []
    for part, begin, words in zip(rest, begins, worded, strict=True):
        if not words:
            parts.append(part)
            continue
        used.append(next(done))
        translated = used[-1].text
        lead = part[:begin]
        tail = part[len(part.rstrip()) :]
        lead = lead or (_gap(part[0], translated[:1]) if parts else "")
        tail = tail or (_gap(part[-1], translated[-1:]) if len(parts) < len(rest) - 1 else "")
        parts.append(f"{lead}{translated}{tail}")
    if not used:
        raise InternalServiceError("a text without words reached the model")
    tokens = sum(each.target_tokens for each in used)
    return replace(
        used[0],
        text=_interleave(parts, phrases),
        score=sum(each.score * each.target_tokens for each in used) / max(tokens, 1),
        source_tokens=sum(each.source_tokens for each in used),
        target_tokens=tokens,
        hit_max_length=any(each.hit_max_length for each in used),
        source_truncated=any(each.source_truncated for each in used),
        much_shorter=any(each.much_shorter for each in used),
        mostly_unknown=any(each.mostly_unknown for each in used),
    )
