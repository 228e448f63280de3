"""Requests of every kind at once: each gets the same result as alone, to the last bit of its scores and attention."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import SENTENCES

from hmc.artifact import HmcError, InvalidRequestError
from hmc.serving import DecodeOptions, Sampling, Target, Translation, Translator
from hmc.serving.requests.options import scoring_options

Request = tuple[str, DecodeOptions, Target]
REQUESTS = 60
SETTINGS: tuple[dict[str, Any], ...] = (
    {"threads": 2},
    {"threads": 1, "workers": 2, "max_rows": 24},
    {"threads": 2, "max_rows": 16, "max_tokens": 500},
)
"""Engines with rows for nearly all requests, with two workers, and with rows for few requests."""


def of_any(draw: random.Random) -> dict[str, Any]:
    """Options that mean something in every kind of search; most are left as they are."""
    chances: dict[str, list[Any]] = {
        "length_penalty": [0, 0.6, 1.5], "max_length": [1, 5, 12, 25], "min_length": [2, 8], "alignment": [True],
        "repetition_penalty": [0.5, 1.2, 2.0], "no_repeat_ngram_size": [1, 2, 3], "suppress_unknown": [True],
        "suppressed_phrases": [("dog",), ("the", "A man")], "suppressed_tokens": [("▁the",)], "token_scores": [True],
        "attention_heads": [("cross.1.0",), ("cross.0.2", "cross.1.1")],
    }  # fmt: skip
    return {name: draw.choice(values) for name, values in chances.items() if draw.random() < 0.2}


def a_request(draw: random.Random) -> Request:
    """Beam search, greedy search, sampling or scoring, with options that do not contradict each other."""
    while True:
        text, chosen, kind = draw.choice(SENTENCES), of_any(draw), draw.random()
        words = draw.choice(SENTENCES).split()
        target = Target(" ".join(words[: draw.randint(1, 3)]) if draw.random() < 0.2 else "")
        text = text if draw.random() < 0.9 else draw.choice(["?", f"{text} " * 4, "😀 漢字", " "])
        try:
            if kind < 0.1:
                return text, scoring_options(DecodeOptions(**chosen)), Target(" ".join(words), complete=True)
            if kind < 0.3:
                limits: dict[str, Any] = {"top_k": draw.choice([None, 1, 20]), "top_p": draw.choice([0.3, 0.9, 1.0])}
                chosen["sampling"] = Sampling(draw.choice([0.5, 1.0, 3.0]), seed=draw.randrange(99), **limits)
                chosen["n_best"] = draw.choice([1, 3])
            else:
                chosen["beam_size"] = draw.choice([1, 1, 2, 4, 4, 7])
                chosen["n_best"] = draw.choice([1, chosen["beam_size"]])
                chosen["patience"] = draw.choice([None, None, 1.0, 2.0])
                chosen["coverage_penalty"] = draw.choice([0, 0, 0.5])
            return text, DecodeOptions(**chosen), target
        except InvalidRequestError:
            continue


def begin(translator: Translator, request: Request, **how: Any) -> Future[Translation] | str:
    """A request on its way, or why it is refused."""
    try:
        return translator.submit(*request, block=True, **how)
    except HmcError as error:
        return str(error)


def answer(begun: Future[Translation] | str) -> Translation | str:
    return begun if isinstance(begun, str) else begun.result(timeout=600)


def among_others(translator: Translator, requests: list[Request], draw: random.Random) -> list[Translation | str]:
    """All requests in random order, some with progress, and among them other requests that are cancelled."""
    begun: dict[int, Future[Translation] | str] = {}
    for index in draw.sample(range(len(requests)), len(requests)):
        if draw.random() < 0.2 and not isinstance(other := begin(translator, a_request(draw)), str):
            other.cancel()
        pieces: list[str] = []
        begun[index] = begin(translator, requests[index], progress=pieces.append if draw.random() < 0.3 else None)
    return [answer(begun[index]) for index in range(len(requests))]


@pytest.mark.parametrize("name", ["full", "h12-int8", "full-int8-shortlist", "full-int4-shortlist"])
def test_each_gets_what_it_gets_alone(name: str, lively_bundle: Path, listed_bundle: Path) -> None:
    bundle = listed_bundle if name.endswith("shortlist") else lively_bundle
    draw = random.Random(name)
    requests = [a_request(draw) for _ in range(REQUESTS)]
    with Translator(bundle, name, device="cpu", threads=1) as translator:
        alone = [answer(begin(translator, request)) for request in requests]
    translated = [found for found in alone if isinstance(found, Translation)]
    assert len(translated) > REQUESTS / 2
    assert len({found.text for found in translated}) > REQUESTS / 4
    for setting in SETTINGS:
        with Translator(bundle, name, device="cpu", **setting) as translator:
            found = among_others(translator, requests, draw)
        differing = [index for index in range(REQUESTS) if found[index] != alone[index]]
        assert not differing, f"{setting}: {requests[differing[0]]}"
