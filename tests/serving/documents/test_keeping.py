"""Phrases that are copied."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError
from hmc.serving import DecodeOptions, Target, Token, Translation
from hmc.serving.documents.keeping import Keeper, occurrences
from hmc.serving.requests.options import TextOptions

URL = "https://a.de/x?y=1"


def kept(
    model: Callable[[str], str], text: str, *phrases: str, traced: Translation | None = None
) -> tuple[str, list[str]]:
    """The translation, and the texts that the model was given."""
    sent: list[str] = []

    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        sent.append(part)
        if options.alignment:
            if traced is None:
                raise FailedPreconditionError("no attention")
            return traced
        return Translation(model(part), -1.0, 2, 2)

    keeper = Keeper(phrases)
    return asyncio.run(keeper.translate(submit, text, DecodeOptions(), Target())).text, sent


def test_a_model_that_copies_is_asked_once() -> None:
    assert kept(lambda text: text, f"see {URL} now", URL) == (f"see {URL} now", [f"see {URL} now"])


def test_numbers_stand_for_phrases_that_the_model_does_not_copy() -> None:
    text, sent = kept(lambda text: text.upper().replace("12", "TWELVE"), f"see {URL} or {{n}}", URL, "{n}")
    assert text == f"SEE {URL} OR {{n}}"
    assert sent[1:] == ["see 12 or 10", "see 10 or 99", "see 99 or 100"]


def test_a_number_of_the_text_stands_for_nothing() -> None:
    text, sent = kept(str.upper, "at 12 see {n}", "{n}")
    assert text == "AT 12 SEE {n}"
    assert "at 12 see 12" not in sent


def test_the_word_that_attends_most_gives_way() -> None:
    weights = ((0.9, 0.1, 0.0), (0.2, 0.7, 0.1), (0.2, 0.8, 0.0), (0.1, 0.1, 0.8), (0.0, 0.1, 0.9))
    pieces = ("▁ein", "▁Bam", "bus", ".", "</s>")
    tokens = tuple(Token(piece, None, each) for piece, each in zip(pieces, weights, strict=True))
    traced = Translation("ein Bambus.", -1.0, 3, 5, tokens=tokens, source_pieces=("▁a", "▁12", "</s>"))
    assert kept(lambda _: "no number", f"a {URL}", URL, traced=traced)[0] == f"ein {URL}."


def test_a_kept_phrase_may_hold_any_character() -> None:
    tokens = tuple(
        Token(piece, None, (weight, 1 - weight)) for piece, weight in (("▁ein", 0.9), ("▁Bam", 0.1), ("</s>", 0.5))
    )
    traced = Translation("ein Bam", -1.0, 2, 3, tokens=tokens, source_pieces=("▁a", "▁12"))
    for phrase in ("x\0y", "x▁y"):
        assert kept(lambda _: "no number", f"a {phrase}", phrase, traced=traced)[0] == f"ein {phrase}"


def test_without_attention_the_text_around_is_translated() -> None:
    text, sent = kept(lambda part: re.sub(r"\d|[^\w ]", "", part).upper(), f"see {URL}, and go", URL)
    assert text == f"SEE {URL}, AND GO", "also what the model drops at the beginning of a text"
    assert sent[-2:] == ["see", "and go"]
    assert kept(lambda part: re.sub(r"\d", "", part), f"see {URL}\u00a0and go", URL)[0] == f"see {URL}\u00a0and go"


def test_a_target_prefix_begins_the_first_part() -> None:
    """Also where the text around the phrases is translated part by part."""

    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        if options.alignment:
            raise FailedPreconditionError("no attention")
        return Translation(target.text + re.sub(r"\d+|{n}", "", part).upper(), -1.0, 2, 2)

    done = asyncio.run(Keeper(("{n}",)).translate(submit, "see {n} now", DecodeOptions(), Target("Der ")))
    assert done.text == "Der SEE {n} NOW"


def test_no_word_of_the_target_prefix_gives_way() -> None:
    """The first word of the translation is forced, and attends most to what stands for the phrase."""
    pieces, weights = ("▁Go", "▁und", "</s>"), ((0.1, 0.9), (0.9, 0.1), (0.5, 0.5))
    tokens = tuple(Token(piece, None, each) for piece, each in zip(pieces, weights, strict=True))

    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        if options.alignment:
            return Translation("Go und", -1.0, 2, 3, tokens=tokens, source_pieces=("▁and", "▁12"))
        return Translation(target.text + re.sub(r"\d+|{n}", "", part), -1.0, 2, 2)

    done = asyncio.run(Keeper(("{n}",)).translate(submit, "and {n}", DecodeOptions(), Target("Go ")))
    assert done.text == "Go and {n}"


def test_options_that_exclude_attention_are_no_error() -> None:
    """Such as sampling: the text around is translated, as without the decoder that traces attention."""

    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        if options.alignment:
            raise InvalidRequestError("alignment cannot be traced while sampling")
        return Translation(re.sub(r"\d+|{n}", "", part).upper(), -1.0, 2, 2)

    done = asyncio.run(Keeper(("{n}",)).translate(submit, "see {n} now", DecodeOptions(), Target()))
    assert done.text == "SEE {n} NOW"


def test_a_text_of_phrases_only_is_copied() -> None:
    assert kept(str.upper, f"{URL} 7", URL) == (f"{URL} 7", [])


@pytest.mark.parametrize(
    ("text", "prefix", "wanted"),
    [
        ("HMC", "Hallo", "Hallo HMC"),
        ("HMC", "Hallo ", "Hallo HMC"),
        ("HMC, HMC!", "Hallo HMC", "Hallo HMC, HMC!"),
        ("HMC", "Hallo HMC", "Hallo HMC"),
        ("HMC", "你好", "你好HMC"),
        ("(HMC)", "Hallo", "Hallo (HMC)"),
        ("HMC", "", "HMC"),
    ],
)
def test_a_target_prefix_begins_a_text_of_phrases_only(text: str, prefix: str, wanted: str) -> None:
    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        raise AssertionError(part)

    done = asyncio.run(Keeper(("HMC",)).translate(submit, text, DecodeOptions(), Target(prefix)))
    assert done.text == wanted


@pytest.mark.parametrize(("phrases", "message"), [(("a", " "), r"keep\[1\] is blank"), (("a",) * 4097, "at most 4096")])
def test_refused_phrases(phrases: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        TextOptions(keep=phrases)


@given(st.text("{%."), st.lists(st.text("{%.", min_size=1, max_size=4), min_size=1, max_size=6))
def test_occurrences_are_those_of_a_regular_expression(text: str, phrases: list[str]) -> None:
    pattern = re.compile("|".join(map(re.escape, sorted(phrases, key=len, reverse=True))))
    assert occurrences(text, phrases) == (pattern.findall(text), pattern.split(text))


@given(st.text("ab_é1."), st.lists(st.text("abé1._", min_size=1, max_size=4), min_size=1, max_size=6))
def test_words_do_not_stand_in_other_words(text: str, phrases: list[str]) -> None:
    words = [word.span() for word in re.finditer("(?:[abé]+|1+)(?:_+(?:[abé]+|1+))*", text)]
    begins, ends = ({span[side] for span in words} for side in (0, 1))

    def stands(phrase: str, at: int) -> bool:
        worded = not {phrase[0], phrase[-1]} & {".", "_"}
        return text.startswith(phrase, at) and (not worded or (at in begins and at + len(phrase) in ends))

    expected, at = [], 0
    while at < len(text):
        here = max((phrase for phrase in phrases if stands(phrase, at)), key=len, default="")
        expected += [here] if here else []
        at += len(here) or 1
    assert occurrences(text, phrases)[0] == expected


@pytest.mark.timeout(60)
def test_words_are_found_in_a_time_that_grows_with_the_text() -> None:
    phrases = ["aa-" * length + "a" for length in range(30, 330)]
    assert occurrences("aa-" * 21_000, phrases)[0] == []


def test_scripts_without_blanks_and_placeholders_have_no_words() -> None:
    assert occurrences("看Go语言，%sMB und GoGo", ["Go", "语言", "%s"])[0] == ["Go", "语言", "%s"]
    for text in ("_Go_ on", "__Go__ on", "Go։", "5Go", "to Go;"):
        assert occurrences(text, ["Go"])[0] == ["Go"], text
    assert occurrences("Go\u0301 Gó xGo", ["Go"])[0] == []


def test_a_number_in_chinese_is_a_word() -> None:
    assert (
        kept(lambda text: text.replace("see ", "看").replace(" now", "的设置"), "see {n} now", "{n}")[0]
        == "看{n}的设置"
    )


def test_the_word_that_gives_way_is_never_a_sentence_of_chinese() -> None:
    tokens = tuple(Token(piece, None, (0.1, 0.9)) for piece in ("▁请打开", "火狐", "</s>"))
    traced = Translation("请打开火狐", -1.0, 2, 3, tokens=tokens, source_pieces=("▁open", "▁12"))
    assert kept(lambda _: "请", "open {n}", "{n}", traced=traced)[0] == "请 {n}"


def test_the_token_of_a_language_is_no_word() -> None:
    weights = {"__de__": (0.9, 0.1), "▁Schau": (0.9, 0.1), "▁Bam": (0.1, 0.9), "</s>": (0.0, 0.0)}
    tokens = tuple(Token(piece, None, each) for piece, each in weights.items())
    traced = Translation("Schau Bam", -1.0, 2, 4, tokens=tokens, source_pieces=("▁look", "▁12"))
    assert kept(lambda _: "no number", "look {n}", "{n}", traced=traced)[0] == "Schau {n}"


def test_a_blank_is_written_beside_a_phrase_where_the_source_has_none() -> None:
    said = {"我们用": "We use", "语言写程序": "to write"}
    assert kept(lambda part: said.get(part, "nothing"), "我们用Go语言写程序", "Go")[0] == "We use Go to write"


def test_a_phrase_in_a_longer_one_is_no_phrase() -> None:
    text, sent = kept(
        lambda text: text.replace("the user is", "der Nutzer ist"), "the user is user_id", "user", "user_id"
    )
    assert (text, len(sent)) == ("the user is user_id", 4)


def test_many_phrases_of_a_sentence() -> None:
    """Of numbers that hold each other, such as 10 and 100."""
    names = ["cats", "dogs", "birds", "cows", "sheep", "trees", "books", "houses"]
    text, sent = kept(lambda text: re.sub("[a-z]+", "x", text), "we saw " + ", ".join(names), *names)
    assert text == "x x " + ", ".join(names)
    assert len(sent) == 4


def test_a_phrase_of_the_target_prefix_is_written_once() -> None:
    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        return Translation(re.sub("{.}", "", part).replace("likes", target.text), -1.0, 2, 2)

    done = asyncio.run(Keeper(("{n}", "{c}")).translate(submit, "{n} likes {c}", DecodeOptions(), Target("{n} mag")))
    assert done.text == " {n} mag {c}"


def test_times_are_of_all_searches() -> None:
    async def submit(part: str, options: DecodeOptions, target: Target) -> Translation:
        await asyncio.sleep(0.02)
        return Translation(part.replace("{n}", ""), -1.0, 2, 2, queue_s=0.005, compute_s=0.015)

    done = asyncio.run(Keeper(("{n}",)).translate(submit, "see {n} now", DecodeOptions(), Target()))
    assert done.text == "see {n} now"
    assert (done.queue_s < 0.02, done.compute_s >= 0.03) == (True, True)


@pytest.mark.timeout(60)
def test_many_long_phrases_in_a_long_text() -> None:
    """A regular expression of these compares 2 000 000 characters at every place of the text."""
    phrases = ["{" * 990 + f"b{n}" for n in range(2000)]
    text = "{" * 64_000
    assert occurrences(text, phrases) == ([], [text])
    assert occurrences(f"{text}b7.", phrases) == ([phrases[7]], [text[990:], "."])
