"""Texts as pieces: all pieces together are the text, and the sentences are those that a reader finds."""

from __future__ import annotations

import json
import os
import re
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from hmc.serving.text.segmentation.pieces import Piece, pieces, runs, worded

DOCUMENTS = Path(__file__).parents[2] / "data" / "documents"
COUNTS: dict[str, int] = json.loads((DOCUMENTS / "sentences.json").read_text(encoding="utf-8"))
WORDS = st.sampled_from(
    ["Hello", "world.", "the", "2.", "Weltkrieg", "z. B.", "Dr.", " ", "\n", "\r\n", "\n\n", "\t", "> ", "- ", "1. ",
     "# ", "| a | b |", "```", "\u00a0", "\u2028", "\ufeff", "\u200b", "😀", "“Hi!”", "e.g.",
     "00:00:01,000 --> 00:00:02,000", '"', "'", "x" * 40, "。", "你好", "\x1c", "\x85", "a@b.de", "İ",
     "\u3000", "\u202f"]
)  # fmt: skip
SIZE = 256 * 1024
TEXTS = st.one_of(st.text(), st.lists(WORDS, max_size=40).map(" ".join), st.lists(WORDS, max_size=60).map("".join))


def sentences(text: str, language: str, room: int = 10_000) -> list[str]:
    return [p.text for p in pieces(text, language, lambda part: len(part) <= room) if p.text is not None]


def read(name: str) -> str:
    return (DOCUMENTS / name).read_bytes().decode()


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.sampled_from(["en", "de", "fr", "zh", "xx"]), st.integers(0, 60))
def test_every_text_is_the_sum_of_its_pieces(text: str, language: str, room: int) -> None:
    found = list(pieces(text, language, lambda part: len(part) <= room))
    assert "".join(piece.source for piece in found) == text
    assert [piece.begin for piece in found] == [sum(len(p.source) for p in found[:n]) for n in range(len(found))]
    for before, after in pairwise(found):
        assert before.text is not None or after.text is not None
    for piece in found:
        if piece.text is not None:
            assert piece.text == piece.text.strip()
            assert 0 < len(piece.text) <= max(room, 1)


def test_there_are_forty_documents() -> None:
    assert len(COUNTS) == 40
    assert {path.name for path in DOCUMENTS.iterdir()} == {*COUNTS, "sentences.json"}


@pytest.mark.parametrize("name", COUNTS)
def test_documents_have_the_sentences_that_were_counted_by_hand(name: str) -> None:
    text, language = read(name), name.split(".")[1]
    found = list(pieces(text, language, lambda _: True))
    assert "".join(piece.source for piece in found).encode() == (DOCUMENTS / name).read_bytes()
    assert sum(piece.text is not None for piece in found) == COUNTS[name]


def test_200_kb_divide_as_their_parts_do() -> None:
    chosen = [name for name in COUNTS if name.split(".")[1] == "en" and not name.startswith(("blank", "code"))]
    once = "\n\n".join(read(name) for name in chosen) + "\n\n"
    times = 200_000 // len(once.encode()) + 1
    found = list(pieces(once * times, "en", lambda _: True))
    assert "".join(piece.source for piece in found) == once * times
    assert sum(piece.text is not None for piece in found) == times * sum(COUNTS[name] for name in chosen)


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("de", "Der 2. Weltkrieg war lang. Er wurde 20. Danach ging er.",
         ["Der 2. Weltkrieg war lang.", "Er wurde 20.", "Danach ging er."]),
        ("fr", "M. Dupont est là. Mme. Curie aussi.", ["M. Dupont est là.", "Mme. Curie aussi."]),
        ("en-GB", "See Vol. 2 now. Go.", ["See Vol. 2 now.", "Go."]),
        ("zh", "你好。我很好！", ["你好。", "我很好！"]),
        ("de", "1. Mai ist frei.\n2. Äpfel", ["1. Mai ist frei.", "Äpfel"]),
    ],
)  # fmt: skip
def test_what_belongs_together(language: str, text: str, found: list[str]) -> None:
    assert sentences(text, language) == found


def test_long_sentences_are_divided_at_clauses_then_words_then_anywhere() -> None:
    assert sentences("one two three, four five; six seven", "en", 20) == ["one two three,", "four five; six seven"]
    assert sentences("one two three four five", "en", 9) == ["one two", "three", "four five"]
    assert sentences("x" * 25, "en", 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_many_quotation_marks_take_no_quadratic_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, whose time grows with the square of a text, gets no long one."""
    given, segment = list[str](), sentencex.segment

    def noted(language: str, text: str) -> list[str]:
        given.append(text)
        return list[str](segment(language, text))

    monkeypatch.setattr(sentencex, "segment", noted)
    text = '"' * 64_000 + " a."
    assert "".join(piece.source for piece in pieces(text, "en", lambda part: len(part) < 500)) == text
    assert "".join(given) == text
    assert max(map(len, given)) <= 4000


def test_line_breaks_within_a_sentence_are_put_back() -> None:
    text = "> I never thought, and nobody did\n> with me, that we would be here."
    quote, sentence = pieces(text, "en", lambda _: True)
    assert quote.text is None
    assert sentence.text == "I never thought, and nobody did with me, that we would be here."
    assert sentence.put_back("Ich dachte nie, dass wir ankommen.") == "Ich dachte nie,\n> dass wir ankommen."
    assert sentence.put_back("Nie") == "Nie\n> "
    assert Piece(0, "a", "a").put_back("b c") == "b c"


@pytest.mark.parametrize(
    "lines",
    [
        ["plums", "flour", "oil", "sugar"],
        ["Plums", "flour", "oil", "sugar."],
        ["Two women carry a long ladder over the wet road to the house", "A cat sleeps on a chair"],
        ["Two women carry a long ladder over the wet road to the house", "A cat sleeps on a chair."],
        ["The name could not be read from the list of persons", "The page cannot be shown because it is far too long",
         "The date must lie within the last eleven or so days"],
        ["The name could not be read from the list of persons", "the page cannot be shown because it is far too long",
         "the date must lie within the last eleven or so days"],
        ["could not read the name from the long list of persons", "the disk is full"],
        ["could not read the name from the long list of persons", "the disk is full and nothing can be written."],
        ["could not read the name from the long list of persons", "the disk is full and nothing can be written to",
         "the house of the person who was asked for is not known."],
        ["Home", "About us", "Sign in"],
        ["Roses are red", "and violets blue"],
        ["Frau Anna Lehmann", "Lange Straße 5", "12345 Berlin"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("language", ["en", "de"])
def test_lines_of_a_list_stay_apart(lines: list[str], language: str) -> None:
    """Items, captions, messages, labels, verses, addresses."""
    assert sentences("\n".join(lines), language) == lines
    assert sentences("\n".join(lines) + "\n\n" + "\n".join(lines), language) == 2 * lines


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Hi Tom,\n\nI wanted to ask you whether you could send me the report of the last\nmeeting. "
         "Thank you for it.\n\nBest regards\nAnna\n",
         ["Hi Tom,", "I wanted to ask you whether you could send me the report of the last meeting.",
          "Thank you for it.", "Best regards", "Anna"]),
        ("Liebe Anna,\n\nvielen Dank für die Blumen, die gestern mit der Post gekommen sind, als\nwir im Garten saßen.",
         ["Liebe Anna,",
          "vielen Dank für die Blumen, die gestern mit der Post gekommen sind, als wir im Garten saßen."]),
        ("The old bridge, which had been built by the people of the vil-\nlage in one summer, fell last week.",
         ["The old bridge, which had been built by the people of the village in one summer, fell last week."]),
        ("Wir haben lange darüber geredet, welche Vor-\nund Nachteile es hat, in der Stadt zu wohnen.",
         ["Wir haben lange darüber geredet, welche Vor- und Nachteile es hat, in der Stadt zu wohnen."]),
        ("- Mix flour and milk in a bowl that has room for all of the other\n  things, and stir\n- Heat the pan",
         ["Mix flour and milk in a bowl that has room for all of the other things, and stir", "Heat the pan"]),
        ("* mix flour and milk in a bowl that has room for all of the other\n  things, and stir\n* heat the pan",
         ["mix flour and milk in a bowl that has room for all of the other things, and stir", "heat the pan"]),
        ("See https://example.org/a/very/long/path/that/does/not/fit/into/any/line/of/a/letter/at/all\n"
         "for the report of the last meeting, in which all of us talked about the\n"
         "state of the roads in the old town, and in which nobody said anything\nnew.\noil\nflour",
         ["See https://example.org/a/very/long/path/that/does/not/fit/into/any/line/of/a/letter/at/all for the report "
          "of the last meeting, in which all of us talked about the state of the roads in the old town, and in which "
          "nobody said anything new.", "oil", "flour"]),
        ("> The dog that we saw in the park last week was\n> the dog of Anna.",
         ["The dog that we saw in the park last week was the dog of Anna."]),
    ],
)  # fmt: skip
def test_wrapped_text_is_joined(text: str, found: list[str]) -> None:
    language = "de" if "ü" in text else "en"
    assert sentences(text, language) == found
    assert "".join(piece.source for piece in pieces(text, language, lambda _: True)) == text


@pytest.mark.parametrize(
    "paragraph",
    [
        "The committee met in the old town hall, where it had met for as long as anybody could remember, and talked "
        "about the state of the roads. Nobody listened. Then Anna spoke for an hour, and in the end all went home.",
        "Die Leute im Dorf haben die alte Brücke in einem einzigen Sommer gebaut, und sie stand zweihundert Jahre. "
        "Letzte Woche wurde sie abgerissen, denn den ganzen Winter über hatte es geregnet, und niemand war dabei.",
    ],
)
@pytest.mark.parametrize("column", [50, 60, 72, 78, 100])
def test_a_paragraph_means_the_same_at_every_column(paragraph: str, column: int) -> None:
    language = "de" if "ü" in paragraph else "en"
    whole = sentences(paragraph, language)
    assert len(whole) > 1
    assert sentences("\n".join(textwrap.wrap(paragraph, column)), language) == whole
    lower = paragraph[0].lower() + paragraph[1:]  # as in a German letter
    letter = "Liebe Anna,\n\n{}\n\nViele Grüße\nTom"
    wrapped = letter.format("\n".join(textwrap.wrap(lower, column)))
    assert sentences(wrapped, language) == sentences(letter.format(lower), language)


def test_only_what_is_shown_of_subtitles_is_translated() -> None:
    webvtt = (
        "\ufeffWEBVTT - A day in the park\nKind: captions\nLanguage: en\n\nSTYLE\n::cue(b) {\n  color: blue;\n}\n\n"
        "REGION\nid:left\nwidth:40%\n\nNOTE made by hand\nnobody reads this\n\nfirst-cue\n"
        "00:01.000 --> 00:04.000 align:start\n<v Anna Lehmann>A man walks over the bridge\nand sees a <b>dog</b>.\n\n"
        "00:05.000 --> 00:06.000\n- <i>Who is it?</i>\n- Note the dog.\n"
    )
    found = ["A man walks over the bridge and sees a <b>dog</b>.", "Who is it?", "Note the dog."]
    assert sentences(webvtt, "en") == found
    assert sentences(webvtt.replace("\n", "\r\n"), "en") == found
    srt = "1\n00:00:01,000 --> 00:00:03,500\n{\\an8}<i>It rains,\nand nobody comes.</i>\n\nNOTE\nA cat sleeps.\n"
    assert sentences(srt, "en") == ["It rains, and nobody comes.", "NOTE", "A cat sleeps."]
    prose = "WEBVTT is a format.\nA dog runs.\n\nNOTE\nA cat sleeps."
    assert sentences(prose, "en") == ["WEBVTT is a format.", "A dog runs.", "NOTE", "A cat sleeps."]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A cat sleeps. 🐈", ["A cat sleeps."]), ("A cat sleeps 🐈", ["A cat sleeps"]), ("🐈 A cat 👍🏽", ["A cat"]),
        ("So tired ❤️ ❤️", ["So tired"]), ("→ Next page", ["Next page"]), ("Yes! 😊 No.", ["Yes!", "No."]),
        ("I ❤️ cats.", ["I ❤️ cats."]), ("It is 20°", ["It is 20°"]), ("Cats™", ["Cats™"]), ("🐈", []),
    ],
)  # fmt: skip
def test_symbols_at_the_ends_of_a_sentence_are_copied(text: str, found: list[str]) -> None:
    assert sentences(text, "en") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A cat sleeps.", "A cat sleeps."), (" A cat sleeps.\n", "A cat sleeps."), ("- A cat. 12", "A cat."),
        ("1. A cat. 5. A dog. —", "A cat. 5. A dog."), ("a) yes", "yes"), ("www.a.org", ""), ("x@example.org", ""),
        ("# Cats", "Cats"), ("> A cat sleeps.", "A cat sleeps."), ("+1 234", ""), (" \n", ""), ("WEBVTT", ""),
        ("A cat sleeps. 🐈", "A cat sleeps."), ("A", "A"), ("12 cats", "12 cats"), ("“A cat.”", "“A cat.”"),
    ],
)  # fmt: skip
def test_what_is_translated_of_a_text_that_is_not_divided(text: str, words: str) -> None:
    begin, end = worded(text, "en")
    assert text[begin:end] == words


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            WORDS, st.sampled_from(["🐈", ".", "A cat.", "12", "www.a", "|", "(", "12.", "! ", "❤️", "—", "\u20e3"])
        ),
        max_size=6,
    ).map("".join)
)
def test_the_quick_look_at_a_line_finds_what_dividing_it_finds(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        quick = runs(text, "en")
        patch.setattr("hmc.serving.text.segmentation.pieces.WORDS", re.compile("(?!)"))
        assert runs(text, "en") == quick


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A cat. A dog. Bye", ["A cat. A dog. Bye"]), ("A cat.\tA dog.", ["A cat.", "A dog."]),
        ("A cat. 🐈 A dog.", ["A cat.", "A dog."]), ("A cat. 12. A dog.", ["A cat.", "A dog."]),
        ("flour\noil\n", ["flour", "oil"]), ("A cat.\u2028A dog.", ["A cat.", "A dog."]), ("12", []),
    ],
)  # fmt: skip
def test_runs_of_sentences(text: str, found: list[str]) -> None:
    assert [run.text for run in runs(text, "en")] == found


@pytest.mark.parametrize("end", ["\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_every_line_end_counts_alike(end: str) -> None:
    """The ends are those of `str.splitlines`. Lines of a list, and running text that was wrapped."""
    items = "Two men play football\nA dog\nBread and butter\nMilk and honey\nCheese\n"
    items += "Opening hours of the public library for all its readers\n"
    wrapped = (
        "The committee met again in the old town hall and\nAnna spoke for an hour about the state of roads in\nSpain.\n"
    )
    for text in (items, wrapped, f"{items}\n{wrapped}"):
        expected = sentences(text, "en")
        assert len(expected) == (1 if text is wrapped else 6 if text is items else 7)
        assert sentences(text.replace("\n", end), "en") == expected


ATOMS = (
    "x@....", "@", ".", "'", '"', "\u201c", "\u00ab", "(", ")", "1. ", "a) ", "- ", " ", "\t", "|", "\\",
    "> ", ">", "# ", "`", "~",
    "1:", "-->", "www.", "http://", "a. ", "a.' ", "Vol. ", "der 2. ", "M. ", "ein", "\n", "\r", "\u2028", "a\n",
    "\u3002", "! ",
    "a, ", "\u2013 ", "\ufeff", "[x] ", "aa. b\n", "<", "x", "\u00c9 ",
)  # fmt: skip
"""What the rules of division look for."""
ATTACKS = int(os.environ.get("HMC_HOSTILE_TEXTS", "20"))


@pytest.mark.timeout(300 if ATTACKS == 20 else 0)
@settings(max_examples=ATTACKS, deadline=None, database=None, derandomize=ATTACKS == 20)
@given(
    st.lists(st.tuples(st.sampled_from(ATOMS), st.sampled_from([1, 1, 3, 50, 5000, 300_000])), min_size=1, max_size=4),
    st.sampled_from(["en", "de", "fr"]),
)
def test_256_kb_of_anything_are_divided(parts: list[tuple[str, int]], language: str) -> None:
    """An expression that is quadratic takes minutes here."""
    once = "".join(atom * times for atom, times in parts)[:SIZE]
    text = (once * (SIZE // len(once) + 1))[: SIZE - 5] + " Z. a"
    found = list(pieces(text, language, lambda part: len(part) < 2000))
    assert "".join(piece.source for piece in found) == text


@pytest.mark.timeout(60)
@pytest.mark.parametrize("atom", ATOMS)
def test_256_kb_of_one_thing_are_divided(atom: str) -> None:
    once = (atom * SIZE)[:SIZE]
    text = f"x@{once} y@"
    assert "".join(piece.source for piece in pieces(text, "de", lambda part: len(part) < 2000)) == text


@pytest.mark.parametrize(
    ("line", "copied"),
    [
        ("x@y.de", True), ("<x@y.de>", True), ("<@y.de", True), ("x@y.>", True), ("http://a", True),
        ("<a_1://b>", True),
        ("www.a", True), ("www.", False), ("x@y", False), ("x@.y", False), ("x@y.", False), ("x@y@a.de", False),
        ("@a.de", False), ("a b@c.de", False), ("a-b://c", False), ("http://", False), ("http://a b", False),
        ("a.b", False), ("更多信息请访问https://example.com。", False), ("メールはx@y.deまで。", False),
        ("https://ja.wikipedia.org/wiki/日本", True), ("https://例え.jp", True),
    ],
)  # fmt: skip
def test_lines_that_are_an_address(line: str, copied: bool) -> None:
    assert sentences(line, "en") == ([] if copied else [line])


def test_code_within_a_line_opens_no_block_of_code() -> None:
    """CommonMark 0.31, section 4.5: after the mark of a fence of backticks there is no other backtick."""
    assert sentences("```foo()``` prints a line.\nThe dog runs.", "en")[-1] == "The dog runs."
    assert sentences("```python\nx = 1\n```\nThe dog runs.", "en") == ["The dog runs."]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("- ```bash\n  pip install dog\n  ```\nThen run it.\n", ["Then run it."]),  # the fence follows a bullet
        ("> ```\n> code\nThe quote has ended.\n", ["The quote has ended."]),
        ("> ```\n> code\n> ```\n> A dog.\n", ["A dog."]),
        ("```\n> ```\ncode\n```\nThe end.\n", ["The end."]),
        ("```\ncode to the end\n", []),
        ("~~~\ncode\n~~~\nA dog.\n", ["A dog."]),
        ("The dog runs.\n~~~~~~~~\nThe cat sleeps.\n", ["The dog runs.", "The cat sleeps."]),  # a rule, not a fence
        ("One title\n~~~~~~~~~\nA dog.\nAnother\n~~~~~~~\nA cat.\n", ["One title", "A dog.", "Another", "A cat."]),
    ],
)
def test_blocks_of_code_begin_and_end(text: str, found: list[str]) -> None:
    assert sentences(text, "en") == found


def test_a_table_may_have_no_bar_at_its_edges() -> None:
    """GitHub Flavored Markdown, section 4.10."""
    rows = "Name | City\n--- | ---\nA dog | Berlin\n\nThis | is no table.\n"
    assert sentences(rows, "en") == ["Name", "City", "A dog", "Berlin", "This | is no table."]


def test_parts_of_a_long_sentence_without_a_letter_are_copied() -> None:
    assert sentences("The numbers are 0, 7, 28, 63, 112, 175.", "en", room=16) == ["The numbers are"]


def test_no_line_break_is_put_into_a_kept_phrase() -> None:
    piece = Piece(0, "", "x" * 20, ((10, "\n"),))
    assert piece.put_back("Das ist Foo Bar 3 hier.") == "Das ist Foo\nBar 3 hier."
    assert piece.put_back("Das ist Foo Bar 3 hier.", ["Foo Bar 3"]) == "Das ist\nFoo Bar 3 hier."
    assert piece.put_back("Foo Bar", ["Foo Bar"]) == "Foo Bar\n"


def test_phrases_that_overlap_are_free_of_line_breaks() -> None:
    piece = Piece(0, "", "x" * 12, ((6, "\n"),))
    assert piece.put_back("a b c d e f", ["a b c", "c d e"]) == "a b c d e\nf"
    assert piece.put_back("a b a b a b", ["a b"]) == "a b\na b a b"
