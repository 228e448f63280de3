"""Puts phrases in place of the words of a translation that attend to what stands for them in the source."""

from __future__ import annotations

from collections.abc import Mapping

from hmc.serving.requests.results import Translation

START = "▁"
MARKS = ".,!?;:"


def paste(translation: Translation, phrases: Mapping[str, str]) -> str | None:
    """The text of a traced translation with every phrase. phrases: word of the source that stands for it → phrase.

    None if a phrase has no word of its own in the translation, if no word of the source stands for it, and if the
    translation has pieces that are not text.
    """
    tokens = [token for token in translation.tokens if token.attention]
    if tokens and not translation.hit_max_length:
        tokens = tokens[:-1]  # EOS
    pieces = [token.piece for token in tokens]
    if any(piece.startswith("<") and piece.endswith(">") for piece in pieces):
        return None  # bytes, unknown tokens
    spans: dict[tuple[int, int], str] = {}
    for word, phrase in phrases.items():
        sources = _positions(translation.source_pieces, word)
        if not sources or not tokens:
            return None
        weights = [sum(token.attention[n] for n in sources) for token in tokens]
        span = _word(pieces, weights.index(max(weights)))
        if span in spans:
            return None
        spans[span] = phrase
    written: list[str] = []
    at = 0
    for (first, last), phrase in sorted(spans.items()):
        written += [*pieces[at:first], START, phrase.replace(START, "\0")]
        if last < len(pieces) and not pieces[last].startswith((START, *MARKS)):
            written.append(START)
        at = last
    text = "".join([*written, *pieces[at:]]).replace(START, " ").replace("\0", START)
    return text.strip()


def _positions(pieces: tuple[str, ...], word: str) -> list[int]:
    """The source tokens that spell the first occurrence of `word`."""
    begin = "".join(pieces).find(word)
    found, at = [], 0
    for index, piece in enumerate(pieces):
        if begin >= 0 and at < begin + len(word) and at + len(piece) > begin:
            found.append(index)
        at += len(piece)
    return found


def _word(pieces: list[str], index: int) -> tuple[int, int]:
    """The word around a token, without the punctuation after it."""
    first, last = index, index + 1
    while first > 0 and not pieces[first].startswith(START):
        first -= 1
    while last < len(pieces) and not pieces[last].startswith((START, *MARKS)):
        last += 1
    return first, last
