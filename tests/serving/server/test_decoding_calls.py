"""Target prefixes, scores and pieces of translations over a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serving.fakes import GUARD_S, FakeFactory, eventually, failure
from tests.support.metrics import metrics_of

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import LevelNotFoundError
from hmc.serving import DecodeOptions, Sampling, Translator
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings
from hmc.v1 import translation_pb2 as pb


def test_prefixes_reach_the_translator(client: Client) -> None:
    found = client.translate(["a", "b"], target_prefixes=["x", ""])
    assert [t.text for t in found] == ["full:a|x|prefix", "full:b"]
    answers = client.translate_stream(["a", "b"], target_prefixes=["", "y"])
    assert [a.result().text for a in answers] == ["full:a", "full:b|y|prefix"]


def test_references_reach_the_translator(client: Client) -> None:
    found = client.score(["a", "b"], ["x", ""], "h6")
    assert [t.text for t in found] == ["h6:a|x|given", "h6:b||given"]


def test_pieces_come_before_the_answer(client: Client) -> None:
    *pieces, last = client.translate_tokens("a", "h12", target_prefix="x")
    assert [p.text for p in pieces] == ["h12", ":", "a|x|prefix"]
    assert last.translation is not None
    assert last.translation.text == "h12:a|x|prefix"
    assert last.translation.compute_s == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("call", "code", "message"),
    [
        (("Translate", pb.TranslateRequest(texts=["a"], target_prefixes=["x", "y"])), "INVALID_ARGUMENT", "2 target_"),
        (("Score", pb.ScoreRequest(texts=["a"])), "INVALID_ARGUMENT", "0 references for 1 texts: give one for each"),
        (("Score", pb.ScoreRequest()), "INVALID_ARGUMENT", "texts is empty"),
        (
            (
                "Score",
                pb.ScoreRequest(texts=["a"], references=["b"], options=pb.DecodingOptions(sampling=pb.Sampling())),
            ),
            "INVALID_ARGUMENT",
            "scored, not sampled",
        ),
        (
            ("Translate", pb.TranslateRequest(texts=["a"], options={"sampling": {"top_k": 1000}})),
            "INVALID_ARGUMENT",
            "top_k 1000: choose 1 to 256",
        ),
        (
            ("Translate", pb.TranslateRequest(texts=["a"], options={"min_length": 9, "max_length": 5})),
            "INVALID_ARGUMENT",
            "min_length 9: choose 1 to max_length (5)",
        ),
    ],
)
def test_refused_calls(stub: Any, call: tuple[str, Any], code: str, message: str) -> None:
    got_code, got_message = failure(lambda: getattr(stub, call[0])(call[1], timeout=GUARD_S))
    assert (got_code, message in got_message) == (code, True), got_message


def test_errors_of_a_piecewise_call(client: Client) -> None:
    with pytest.raises(LevelNotFoundError, match="unknown level 'nope'"):
        list(client.translate_tokens("a", "nope"))
    with pytest.raises(InvalidRequestError, match="longer than 65536 bytes"):
        list(client.translate_tokens("x" * 100_000))
    with pytest.raises(InvalidRequestError, match="target_prefix cannot be written as UTF-8"):
        list(client.translate_tokens("a", target_prefix="\ud800"))
    with pytest.raises(InvalidRequestError, match="text 1 has no target prefix"):
        list(client.translate_stream(["a", "b"], target_prefixes=["x"]))
    assert [p.text for p in client.translate_tokens("still up")][-2:] == ["still up", ""]


def test_leaving_the_pieces_early_cancels(client: Client, factory: FakeFactory) -> None:
    stream = client.translate_tokens("hold", "full")
    assert next(stream).text == "full"
    assert factory["full"].pending == 1
    stream.close()  # a generator
    factory["full"].wait_for(lambda: factory["full"].pending == 0)
    assert factory["full"].futures[-1].cancelled()


def test_calls_that_are_left_early_are_counted_as_cancelled(bundle: Path, factory: FakeFactory) -> None:
    with (
        BackgroundServer(bundle, ServerSettings(port=0, metrics_port=0), factory) as server,
        Client(server.address) as client,
    ):
        factory["full"].queue_size = 1000
        for _ in range(10):
            stream = client.translate_tokens("hold")
            assert [next(stream).text, next(stream).text] == ["full", ":"]
            stream.close()  # a generator

        def counted() -> set[str]:
            return {line for line in metrics_of(server).splitlines() if line.startswith("hmc_requests_total")}

        eventually(lambda: counted() == {'hmc_requests_total{code="CANCELLED",level="full",model="en-de"} 10.0'})


@pytest.fixture(scope="module")
def real(lively_bundle: Path) -> Iterator[Client]:
    with (
        BackgroundServer(lively_bundle, ServerSettings(port=0, device="cpu", levels=("full",))) as server,
        Client(server.address) as client,
    ):
        yield client


TEXTS = ["A man is standing on a ladder.", "Two dogs run across the wet grass."]


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(n_best=4, token_scores=True, alignment=True, attention_heads=("cross.0.1", "cross.1.2")),
        DecodeOptions(n_best=3, sampling=Sampling(seed=5, temperature=1.2, top_p=0.9), token_scores=True),
        DecodeOptions(coverage_penalty=0.2, repetition_penalty=1.2, patience=2.0, suppressed_phrases=("the",)),
    ],
    ids=["n-best", "sampling", "penalties"],
)
def test_answers_equal_those_of_the_translator(real: Client, lively_bundle: Path, options: DecodeOptions) -> None:
    with Translator(lively_bundle, "full", device="cpu") as here:
        assert list(real.translate(TEXTS, options=options, target_prefixes=["A", ""])) == pytest.approx(
            here.translate(TEXTS, options, ["A", ""])
        )
        if options.sampling is None:
            assert list(real.score(TEXTS, TEXTS[::-1], options=options)) == here.score(TEXTS, TEXTS[::-1], options)
        *pieces, last = real.translate_tokens(TEXTS[0], options=options)
        assert last.translation == here.translate(TEXTS[:1], options)[0]
        assert "".join(p.text for p in pieces) == last.translation.text
