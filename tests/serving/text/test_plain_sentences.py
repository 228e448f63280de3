"""Texts of which one look says that they are one sentence."""

from __future__ import annotations

import pytest

from hmc.serving.text.segmentation.pieces import PLAIN_SENTENCE, has_fractions, pieces, worded

PLAIN = [
    "A man in a gray coat is feeding pigeons.",
    "It isn't far, is it?",
    "Ein Mann, der 3 Tauben füttert",
    "Привет мир!",
    "白いシャツの男性",
    "O'Brien’s well-known dog",
    "www is a prefix",
]
NOT_PLAIN = [
    "", " a", "One. Two.", "3 men", "- a bullet", "a) an item", "a@b.de", "www.example.org", "WEBVTT", "two\nlines",
    "a\ttab", "a | cell", "He said: go", "Wait … now", "मैं। तुम", "done ✓", "a" * 1200,
]  # fmt: skip


@pytest.mark.parametrize("text", PLAIN)
def test_a_plain_sentence_is_one_piece(text: str) -> None:
    assert PLAIN_SENTENCE.fullmatch(text)
    for language in ("en", "de", "fr", "ru", "ja"):
        found = list(pieces(text, language, lambda _: True))
        assert [piece.text for piece in found] == [text]


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_other_texts_are_divided_as_they_need(text: str) -> None:
    assert not PLAIN_SENTENCE.fullmatch(text)


@pytest.mark.parametrize("text", ["½", "½ cup", "See ² below", "①"])
def test_numbers_that_are_no_digits_are_not_taken_for_letters(text: str) -> None:
    assert has_fractions(text)
    assert worded(text, "en") == divided_span(text)


def divided_span(text: str) -> tuple[int, int]:
    """Of the first to the last piece that is translated, when a text is divided without a first look."""
    found = [piece for piece in pieces(text, "en", lambda _: True) if piece.text is not None]
    return (found[0].begin, found[-1].end) if found else (0, 0)
