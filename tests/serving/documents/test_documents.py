"""Documents with a real model: no sentence is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.serving.fakes import SOURCE_SIDE, FakeTranslator

from hmc.artifact.errors import FailedPreconditionError
from hmc.serving import DecodeOptions, Target, Translation, Translator
from hmc.serving.client import Segmentation
from hmc.serving.documents.documents import DocumentTranslator
from hmc.serving.documents.local import translate_document
from hmc.serving.documents.splitting import Splitter
from hmc.serving.requests.options import TextOptions
from hmc.serving.text.segmentation.pieces import Piece, clauses, pieces
from hmc.serving.text.tokenizer import shared_tokenizer

DOCUMENTS = Path(__file__).parents[2] / "data" / "documents"
COUNTS: dict[str, int] = json.loads((DOCUMENTS / "sentences.json").read_text(encoding="utf-8"))
OPTIONS = DecodeOptions(beam_size=1, max_length=8)


@pytest.fixture(scope="module")
def loaded(tiny_bundle: Path) -> Iterator[Translator]:
    with Translator(tiny_bundle, device="cpu", threads=1) as translator:
        yield translator


@dataclass
class In:
    """A translator that reads a language."""

    translator: Translator
    language: str

    @property
    def source(self) -> Any:
        return shared_tokenizer(Path(), self.translator.manifest).source_side(self.language, "de")

    def submit(self, text: str, options: DecodeOptions, target: Target, *, block: bool) -> Future[Translation]:
        return self.translator.submit(text, options, target, block=block)


@dataclass
class Ready:
    """A fake translator, which never waits for a place."""

    translator: FakeTranslator

    @property
    def source(self) -> Any:
        return self.translator.source

    def submit(self, text: str, options: DecodeOptions, target: Target, *, block: bool) -> Future[Translation]:
        assert block
        return self.translator.submit(text, options, target)


def parts_of(piece: Piece, reader: In) -> list[str]:
    """What is translated of a piece. The tiny model has no room for long sentences: they are divided at line breaks
    first, and then into clauses."""
    if piece.text is None:
        return []
    if reader.source.fits(piece.text):
        return [piece.text]
    ends = [*(place for place, _ in piece.breaks), len(piece.text)]
    begins = [0, *(place + 1 for place, _ in piece.breaks)]
    lines = [piece.text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return [line[begin:end] for line in lines for begin, end in clauses(line, reader.source.fits)]


@pytest.mark.parametrize("name", COUNTS)
def test_as_many_sentences_come_out_as_went_in(name: str, loaded: Translator) -> None:
    text, reader = (DOCUMENTS / name).read_bytes().decode(), In(loaded, name.split(".")[1])
    found = list(translate_document(reader, text, OPTIONS, TextOptions(Segmentation.SENTENCE)))
    segments = [piece.segment for piece in found if piece.segment is not None]
    made = "".join(piece.text for piece in found)
    assert made.count("\n") == text.count("\n")
    whole = [piece.text for piece in pieces(text, reader.language, lambda _: True) if piece.text is not None]
    assert len(whole) == COUNTS[name]
    assert len(segments) == sum(len(parts_of(piece, reader)) for piece in pieces(text, reader.language, lambda _: True))
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


@pytest.mark.parametrize("text", ["+49 30 1234567", "½", "😀", "!!!", "me@example.com", "https://Example.org/Ü", " \n"])
def test_a_text_without_a_sentence_is_copied(text: str, loaded: Translator) -> None:
    for options in (OPTIONS, DecodeOptions(beam_size=2, n_best=2, max_length=8)):
        assert loaded.translate([text], options)[0].text == (text if text.strip() else "")


def test_kept_phrases_survive(loaded: Translator) -> None:
    keep = ("https://a.de/x?y=1", "{name}", "😀")
    text = "A dog sees {name}.\nGo to https://a.de/x?y=1 or {name} now 😀!\n😀\n"
    made = "".join(p.text for p in translate_document(loaded, text, OPTIONS, TextOptions(keep=keep)))
    assert [made.count(phrase) for phrase in keep] == [1, 2, 2]


def test_leaving_early_cancels(loaded: Translator) -> None:
    stream = translate_document(loaded, "A dog runs.\n" * 500, OPTIONS)
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    assert next(translate_document(loaded, "A dog.", OPTIONS)).segment is not None
    held = FakeTranslator("full", queue_size=1000)
    stream = translate_document(Ready(held), "Go on.\n" + "hold on.\n" * 500)
    assert next(stream).text == "full:Go on."
    assert held.pending > 0
    stream.close()  # type: ignore[attr-defined]
    assert held.pending == 0
    assert all(future.cancelled() for future in held.futures[1:])
    held.release.set()


def test_the_token_of_the_target_language_goes_before_every_sentence() -> None:
    translator = FakeTranslator("full")
    found = translate_document(Ready(translator), "Go on.\n\nBe well.", None, None, ">>deu<<")
    assert [piece.text for piece in found] == ["full:>>deu<< Go on.", "\n\nfull:>>deu<< Be well."]
    list(translate_document(Ready(translator), " \n", None, None, ">>deu<<"))
    assert translator.texts == [">>deu<< Go on.", ">>deu<< Be well."]


def test_blanks_between_sentences_are_those_of_the_language_that_is_asked_for() -> None:
    """Not of the bundle's: Japanese sentences in a row, into German or Chinese."""

    class Speaks(FakeTranslator):
        """Ends every translation with a full stop."""

        def submit(self, text: str, *more: Any, **options: Any) -> Future[Translation]:
            return super().submit(f"{text.rsplit(maxsplit=1)[-1].rstrip('。')}.", *more, **options)

    for token, made in (
        (">>deu<<", "full:犬. full:猫."),
        (">>zho_Hans<<", "full:犬.full:猫."),
        ("", "full:犬. full:猫."),
    ):
        found = translate_document(Ready(Speaks("full")), "犬。猫。", None, None, token)
        assert "".join(piece.text for piece in found) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("“你好。”他说。", "full:“你好。” full:他说。"),
        ("你好!我很好.", "full:你好! full:我很好."),
        ("Hello. 你好。\n再见。", "full:Hello. full:你好。\nfull:再见。"),
    ],
)
def test_sentences_of_a_script_without_blanks_are_divided_by_blanks(text: str, made: str) -> None:
    translator = FakeTranslator("full", source=replace(SOURCE_SIDE, language="zh"))
    assert "".join(piece.text for piece in translate_document(Ready(translator), text, None, None)) == made


def test_every_part_around_a_kept_phrase_has_the_token_of_the_text() -> None:
    """The model copies no number, so that the text around the phrase is translated by itself."""
    sent: list[str] = []

    async def submit(text: str, options: DecodeOptions, target: Target) -> Translation:
        sent.append(text)
        if options.alignment:
            raise FailedPreconditionError("no attention")
        return Translation("words", -1.0, 2, 2)

    texts = TextOptions(keep=("{name}",), segmentation=Segmentation.NONE)
    splitter = Splitter(FakeTranslator("full").source, DecodeOptions(), texts)

    async def translated() -> list[str]:
        split = [splitter.split(">>deu<< See {name} now.")]
        async with aclosing(DocumentTranslator(splitter, submit).translate(split, [Target()], 4)) as results:
            return [each.text async for each in results]

    assert asyncio.run(translated()) == ["words {name} words"]
    assert sent[-2:] == [">>deu<< See", ">>deu<< now."]
