"""The golden suite: a committed bundle still gives the committed answers, at every public face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.command import done, run_hmc
from tests.golden.cases import (
    BUNDLE,
    CASES,
    LEVELS,
    TOLERANCES,
    Case,
    golden_answers,
    prefixes,
    problems,
    references,
    sources,
    written,
)
from tests.support.files import write_lines

from hmc.artifact import validate
from hmc.serving import Translation, Translator
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

BY_NAME = {case.name: case for case in CASES}
IN_COMMAND = [case for case in CASES if case.arguments is not None]


@pytest.fixture(scope="module", params=LEVELS)
def translator(request: pytest.FixtureRequest) -> Iterator[Translator]:
    with Translator(BUNDLE, request.param, device="cpu", threads=1, workers=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    settings = ServerSettings(port=0, device="cpu", threads=1, levels=LEVELS)
    with BackgroundServer(BUNDLE, settings) as running:
        yield running


def test_the_bundle_is_whole() -> None:
    """Nothing of it has changed since it was compiled: its files have the digests in its manifest."""
    assert [level.name for level in validate(BUNDLE).levels] == list(LEVELS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_translator(translator: Translator, case: Case) -> None:
    if case.score:
        answers = translator.score(sources(case), references(case), case.options)
    else:
        answers = translator.translate(sources(case), case.options, prefixes(case), segmentation="none")
    assert problems(translator.level.name, case, [written(answer) for answer in answers]) == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_client(server: BackgroundServer, level: str, case: Case) -> None:
    texts, begin = sources(case), prefixes(case)
    answers: list[Translation] = []
    with Client(server.address) as client:
        for start in range(0, len(texts), 50):
            part = slice(start, start + 50)
            if case.score:
                answers += client.score(texts[part], references(case)[part], level, case.options)
            else:
                answers += client.translate(
                    texts[part], level, case.options, target_prefixes=begin[part], segmentation="none"
                )
    assert problems(level, case, [written(answer) for answer in answers]) == []


@pytest.mark.parametrize("level", LEVELS)
def test_stream(server: BackgroundServer, level: str) -> None:
    case = BY_NAME["beam-4"]
    with Client(server.address) as client:
        answers = [written(answer.result()) for answer in client.translate_stream(sources(case), level, case.options)]
    assert problems(level, case, answers) == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", IN_COMMAND, ids=lambda case: case.name)
def test_command(tmp_path: Path, level: str, case: Case) -> None:
    source = write_lines(tmp_path / "sources.en", sources(case))
    where = ("--bundle", BUNDLE, "--device", "cpu", "--threads", "1", "--level", level, "--json")
    if case.score:
        given = write_lines(tmp_path / "references.de", references(case))
        ran = done(run_hmc(("score", source, given, *where, "--token-scores")))
    else:
        assert case.arguments is not None
        ran = done(run_hmc(("translate", "--source", source, *where, *case.arguments)))
    answers = [of_record(json.loads(line)) for line in ran.stdout.splitlines()]
    assert problems(level, case, answers) == []


def of_record(record: dict[str, Any]) -> list[list[Any]]:
    """The answer in a line of JSON."""
    hypotheses = (record, *record.get("alternatives", ()))
    tokens = [[token["score"] for token in hypothesis.get("tokens", ())] for hypothesis in hypotheses]
    return [[each["translation"], each["score"], scores, []] for each, scores in zip(hypotheses, tokens, strict=True)]


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_wrong_is_noticed(level: str) -> None:
    """Beside each tolerance an error that is a little larger than it."""
    greedy, scored, aligned = BY_NAME["greedy"], BY_NAME["score"], BY_NAME["alignment"]
    right = golden_answers(level, greedy)
    assert problems(level, greedy, right) == []

    few = [[["", *answer[0][1:]]] if index < 11 else answer for index, answer in enumerate(right)]
    assert "translations differ" in problems(level, greedy, few)[-1]

    shifted = [[[text, score + 1.1 * TOLERANCES[level].score, *rest]] for [[text, score, *rest]] in right]
    assert len(problems(level, greedy, shifted)) == greedy.count

    tokens = golden_answers(level, scored)
    for [[_, _, scores, _]] in tokens:
        scores[-1] += 1.1 * TOLERANCES[level].token
    assert len(problems(level, scored, tokens)) == scored.count

    seen = golden_answers(level, aligned)
    for [[_, _, _, places]] in seen:
        places[:2] = [place + 1 for place in places[:2]]
    assert len(problems(level, aligned, seen)) > 0


@pytest.mark.parametrize("level", LEVELS)
def test_another_search_is_noticed(level: str) -> None:
    """A search with one more hypothesis, or an attention of other heads, does not pass for the golden one."""
    beam, aligned = BY_NAME["beam-4"], BY_NAME["alignment-heads"]
    with Translator(BUNDLE, level, device="cpu", threads=1, workers=1) as translator:
        wider = translator.translate(sources(beam), replace(beam.options, beam_size=5), segmentation="none")
        assert problems(level, beam, [written(answer) for answer in wider])
        other = translator.translate(
            sources(aligned), replace(aligned.options, attention_heads=("cross.0.2",)), segmentation="none"
        )
        assert problems(level, aligned, [written(answer) for answer in other])
