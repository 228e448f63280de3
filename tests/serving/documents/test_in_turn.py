"""What is copied around and between the sentences of a text that is not divided: at the level itself, so in front of
every door."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serving.held_steps import HeldSteps

from hmc.artifact.errors import InvalidRequestError, UnavailableError
from hmc.serving import DecodeOptions, Target, Translator
from hmc.serving.documents.local import translate_document
from hmc.serving.requests.options import TextOptions


@pytest.fixture(scope="module")
def translator(lively_bundle: Path) -> Iterator[Translator]:
    with Translator(lively_bundle, "full", device="cpu", threads=1, queue_size=1) as loaded:
        yield loaded


def alone(translator: Translator, text: str) -> str:
    return translator.submit(text, block=True).result().text


def test_what_lies_around_a_sentence_is_copied_with_every_hypothesis(translator: Translator) -> None:
    options = DecodeOptions(n_best=3, token_scores=True)
    plain = translator.submit("A boy jumps.", options).result()
    found = translator.submit(" - A boy jumps. 🐶 \n", options).result()
    assert [h.text for h in found.hypotheses] == [f"- {h.text} 🐶" for h in plain.hypotheses]
    assert (found.tokens, found.score, found.source_tokens) == (plain.tokens, plain.score, plain.source_tokens)


@pytest.mark.parametrize("text", ["🐶", "+49 40 7654321", " ?! ", "26 × ?", "www.example.org", "§ 7\n• \n"])
@pytest.mark.parametrize("line", [False, True])
def test_a_text_without_a_sentence_is_copied(text: str, line: bool, translator: Translator) -> None:
    found = translator.submit(text, DecodeOptions(n_best=2), Target("Ein"), line=line).result()
    assert (found.text, found.score, found.source_tokens, found.alternatives) == (text, 0.0, 0, ())
    with pytest.raises(InvalidRequestError, match="not in the vocabulary"):
        translator.submit(text, DecodeOptions(suppressed_tokens=("NoSuchPiece",)), line=line)


def test_the_score_of_a_copy_is_that_of_the_sentence_in_it(translator: Translator) -> None:
    plain = translator.score(["A boy jumps."], ["Ein Hund"])[0]
    framed = translator.score(["• A boy jumps. 🐶"] * 2, ["• Ein Hund 🐶", "Ein Hund"])
    assert [each.score for each in framed] == [plain.score, plain.score]
    assert [each.text for each in framed] == [f"• {plain.text} 🐶", plain.text]
    copied, made_up = translator.score(["🐶", "🐶"], ["🐶", "Ein Hund"])
    assert (copied.text, copied.score) == ("🐶", 0.0)
    assert made_up.score < 0.0


@pytest.mark.parametrize(
    "text", ["A boy jumps.\tTwo dogs run.\t12", "1. A boy jumps. 🐶 Two dogs run.", "flour\noil\n", "🐶\tTwo dogs run."]
)
def test_parts_of_a_line_are_translated_in_turn(text: str, translator: Translator) -> None:
    """Each part has the place of the one before: this queue has one."""
    expected = text
    for part in ("A boy jumps.", "Two dogs run.", "flour", "oil"):
        expected = expected.replace(part, alone(translator, part))
    found = translator.submit(text, line=True).result()
    assert found.text == expected
    assert found.compute_s > 0.0
    *pieces, last = translator.stream(text)
    assert last.translation is not None
    assert last.translation.text == expected
    assert expected.startswith("".join(piece.text for piece in pieces))
    assert pieces[0].text
    # A text that may not be divided stays one, and what several parts cannot have together does so too.
    whole = translator.submit(text).result().text
    assert translator.translate([text], segmentation="none")[0].text == whole
    assert translator.submit(text, DecodeOptions(n_best=2), line=True).result().text == whole


def test_a_text_in_turn_is_cancelled_and_closed(lively_bundle: Path, steps: HeldSteps) -> None:
    with Translator(lively_bundle, "full", device="cpu", threads=1) as translator:
        steps.hold()
        future = translator.submit("flour\noil", line=True)
        assert future.cancel()
        steps.release()
        assert alone(translator, "A boy jumps.")
        waiting = translator.submit("flour\noil\nmilk", line=True)
    assert waiting.result().text.count("\n") == 2
    with pytest.raises(UnavailableError):
        translator.submit("flour\noil", line=True)


def test_a_text_in_another_script_is_marked(translator: Translator) -> None:
    for text, mark in (("Привет, мир.", True), ("你好世界", True), ("A boy jumps.", False), ("A 🐶 boy jumps.", False)):
        assert translator.submit(text).result().mostly_unknown is mark
        assert translator.translate([f"A boy jumps.\n{text}"])[0].mostly_unknown is mark
        (*_, piece) = translate_document(translator, text, None, TextOptions())
        assert piece.segment is not None
        assert piece.segment.mostly_unknown is mark


def test_lines_that_are_read_as_one_are_counted(translator: Translator) -> None:
    text = "Two men in blue shirts stand on the roof of the old white\nhouse and look at the road.\nflour\noil"
    assert translator.translate([text])[0].joined_lines == 1
    assert translator.translate(["flour\noil"])[0].joined_lines == 0
    segments = [piece.segment for piece in translate_document(translator, text, None, TextOptions())]
    assert [segment and segment.joined_lines for segment in segments] == [1, 0, 0]


def test_a_kept_phrase_stands_between_what_is_copied(translator: Translator) -> None:
    """The phrase is lost by this model, so that other ways to keep it are taken."""
    text = "• A boy jumps over {name}. 🐶"
    made = "".join(p.text for p in translate_document(translator, text, None, TextOptions(keep=("{name}", "🐶"))))
    assert made.startswith("• ")
    assert made.endswith(" 🐶")
    assert made.count("{name}") == made.count("🐶") == 1
