"""Documents on a real socket: what is divided, what is refused, and what a stream sends first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.serving.fakes import GUARD_S, FakeFactory, failure

from hmc.artifact import InvalidRequestError
from hmc.engine.requests.caller import Priority
from hmc.serving import DecodeOptions
from hmc.serving.client import Client
from hmc.serving.documents.documents import DOCUMENT_WINDOW
from hmc.serving.requests.options import MAX_ANSWER_TOKENS
from hmc.v1 import translation_pb2 as pb

TEXT = "# Title\n\n- A dog. A cat.\n"


def test_texts_of_several_lines_are_divided(client: Client, factory: FakeFactory) -> None:
    answer = client.translate([TEXT, "One line.\n"], return_segments=True)
    assert [t.text for t in answer] == ["# full:Title\n\n- full:A dog. full:A cat.\n", "full:One line.\n"]
    assert factory["full"].texts == ["Title", "A dog.", "A cat.", "One line.\n"]
    first = answer[0]
    assert [TEXT[s.source_begin : s.source_end] for s in first.segments] == ["Title", "A dog.", "A cat."]
    assert [first.text[s.target_begin : s.target_end] for s in first.segments] == [
        "full:Title", "full:A dog.", "full:A cat."
    ]  # fmt: skip
    assert (first.score, first.source_tokens, first.target_tokens) == (-0.5, 9, 12)
    whole = answer[1].segments[0]
    assert (whole.source_begin, whole.source_end, whole.target_begin, whole.target_end) == (0, 9, 0, 15)


def test_segmentation_of_a_request(client: Client) -> None:
    assert client.translate(["Go on. Be well."], segmentation="sentence")[0].text == "full:Go on. full:Be well."
    assert client.translate([TEXT], segmentation="none")[0].text == f"full:{TEXT}"
    with pytest.raises(InvalidRequestError, match="segmentation 'x': choose auto, sentence, none"):
        client.translate(["a"], segmentation="x")


def test_a_prefix_begins_the_first_sentence(client: Client) -> None:
    answer = client.translate(["\nGo on. Be well."], target_prefixes=["Los"], segmentation="sentence")
    assert answer[0].text == "\nfull:Go on.|Los|prefix full:Be well."


def test_a_language_code_is_sent_with_every_sentence(client: Client, factory: FakeFactory) -> None:
    assert client.translate([">>deu<< Go on.\nBe well."])[0].text == "full:>>deu<< Go on.\nfull:>>deu<< Be well."
    assert factory["full"].texts == [">>deu<< Go on.", ">>deu<< Be well."]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"options": {"n_best": 2}}, "texts[0]: the text is divided into sentences, which excludes n_best"),
        ({"options": {"alignment": True}}, "excludes token_scores and alignment without return_segments"),
        ({"keep": ["a"], "options": {"alignment": True}}, "keep changes translations after the search"),
        ({"segmentation": 9}, "segmentation 9: choose SEGMENTATION_AUTO"),
        ({"keep": [" "]}, "keep[0] is blank"),
    ],
)
def test_refusals(stub: Any, fields: dict[str, Any], message: str) -> None:
    code, said = failure(lambda: stub.Translate(pb.TranslateRequest(**{"texts": [TEXT], **fields}), timeout=10))
    assert (code, message in said) == ("INVALID_ARGUMENT", True), said


def test_a_document_is_sent_piece_by_piece(client: Client, factory: FakeFactory) -> None:
    text = "Go on.\n\nhold this.\nLast"
    pieces = client.translate_document(text, timeout=20)
    assert next(pieces).text == "full:Go on."  # the second sentence is still held
    factory["full"].release.set()
    rest = list(pieces)
    assert [piece.text for piece in rest] == ["\n\nfull:hold this.", "\nfull:Last"]
    assert rest[-1].segment is not None
    assert text[rest[-1].segment.source_begin : rest[-1].segment.source_end] == "Last"
    assert (rest[-1].level, rest[-1].bundle_version) == ("full", "0123456789abcdef")
    assert set(factory["full"].priorities) == {Priority.BULK}


def test_a_long_document_takes_a_bounded_part_of_the_queue(client: Client, factory: FakeFactory) -> None:
    pieces = client.translate_document("Go on.\nhold on.\n" + "Go on.\n" * 400, timeout=60)
    assert next(pieces).text == "full:Go on."
    most = 1 + DOCUMENT_WINDOW // 2  # every other piece of the window is a line break
    factory["full"].wait_for(lambda: len(factory["full"].texts) >= most)
    for _ in range(100):  # time enough for more on the event loop, which goes round several times for each call
        client.levels()
    assert len(factory["full"].texts) == most
    factory["full"].release.set()
    assert sum(piece.text.count("Go on.") for piece in pieces) == 400


def test_a_document_that_is_left_is_cancelled(client: Client, factory: FakeFactory) -> None:
    pieces = client.translate_document("Go on.\n" + "hold on.\n" * 500)
    next(pieces)
    pieces.close()  # it is a generator
    factory["full"].wait_for(lambda: factory["full"].pending == 0)
    assert len(factory["full"].texts) < 500


def test_what_a_document_cannot_have(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="choose SEGMENTATION_AUTO or SEGMENTATION_SENTENCE"):
        list(client.translate_document("a", segmentation="none"))
    with pytest.raises(InvalidRequestError, match="leave n_best out"):
        list(client.translate_document("a", options=DecodeOptions(n_best=2)))
    assert "".join(piece.text for piece in client.translate_document(" a b \n", segmentation="auto")) == " full:a b \n"
    assert list(client.translate_document("")) == []


def test_a_text_has_at_most_a_mebibyte(client: Client, stub: Any) -> None:
    text = "x" * (2**20 + 1)
    calls: list[Callable[[], object]] = [
        lambda: stub.Translate(pb.TranslateRequest(texts=[text])),
        lambda: list(stub.TranslateDocument(pb.TranslateDocumentRequest(text=text))),
    ]
    for call in calls:
        code, said = failure(call)
        assert code == "INVALID_ARGUMENT"
        assert "is longer than 1048576 bytes: split it or shorten it" in said
    made = "".join(piece.text for piece in client.translate_document("\n" * 2**20, timeout=GUARD_S))
    assert made == "\n" * 2**20


def test_what_one_answer_may_cost_is_bounded(client: Client, factory: FakeFactory) -> None:
    """The fake tokenizer counts words."""
    text = "Go on. " * (MAX_ANSWER_TOKENS // 2 + 100)
    for segmentation in ("auto", "sentence"):
        with pytest.raises(InvalidRequestError, match=r"texts\[0\].* 32,9\d\d tokens, .* 32,768: .* TranslateDocument"):
            client.translate([text], segmentation=segmentation)
    assert not factory["full"].texts
    pieces = client.translate_document(text, timeout=60)
    assert next(pieces).text == "full:Go on."
    pieces.close()  # it is a generator
