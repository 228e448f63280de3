"""Documents with a real model: no sentence is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmc.serving import Translator
from hmc.serving.documents.local import translate_document
from hmc.serving.requests.options import DecodeOptions
from hmc.serving.requests.text_options import Segmentation, TextOptions

DOCUMENTS = Path(__file__).parents[2] / "data" / "documents"
COUNTS: dict[str, int] = json.loads((DOCUMENTS / "sentences.json").read_text(encoding="utf-8"))
OPTIONS = DecodeOptions(beam_size=1, max_length=8)


@pytest.fixture(scope="module")
def loaded(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, device="cpu", threads=1) as translator:
        yield translator


@pytest.mark.parametrize("name", COUNTS)
def test_as_many_sentences_come_out_as_went_in(name: str, loaded: Translator) -> None:
    """All of them are English to the model: German ones are divided by English rules, so only English counts hold."""
    text = (DOCUMENTS / name).read_bytes().decode()
    found = list(translate_document(loaded, text, OPTIONS, TextOptions(Segmentation.SENTENCE)))
    segments = [piece.segment for piece in found if piece.segment is not None]
    made = "".join(piece.text for piece in found)
    assert made.count("\n") >= text.count("\n")
    if name.split(".")[1] == "en":
        assert len(segments) >= COUNTS[name]  # more where a sentence is longer than the tiny model's 95 tokens
    at, end = 0, 0
    for segment in segments:  # what lies between the sentences is the same on both sides
        assert text[at : segment.source_begin] == made[end : segment.target_begin]
        at, end = segment.source_end, segment.target_end
    assert text[at:] == made[end:]


def test_a_sentence_longer_than_the_positions_is_translated_in_parts(loaded: Translator) -> None:
    text = "a dog, " * 60
    found = list(translate_document(loaded, text, OPTIONS, TextOptions(Segmentation.AUTO)))
    segments = [piece.segment for piece in found if piece.segment is not None]
    assert len(segments) > 1
    assert all(segment.source_tokens <= 96 for segment in segments)
    assert "".join(text[s.source_begin : s.source_end] for s in segments).replace(" ", "") == text.replace(" ", "")


def test_kept_phrases_survive(loaded: Translator) -> None:
    keep = ("https://a.de/x?y=1", "{name}", "😀")
    text = "A dog sees {name}.\nGo to https://a.de/x?y=1 or {name} now 😀!\n😀\n"
    made = "".join(p.text for p in translate_document(loaded, text, OPTIONS, TextOptions(keep=keep)))
    assert [made.count(phrase) for phrase in keep] == [1, 2, 2]


def test_leaving_early_cancels(loaded: Translator) -> None:
    pieces = translate_document(loaded, "A dog runs.\n" * 500, OPTIONS)
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]  # it is a generator
    assert next(translate_document(loaded, "A dog.", OPTIONS)).segment is not None
