"""The native executor behind every option of a request: the answers of the reference, bit for bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.runtime.test_reference import OPTIONS, TEXTS, translated

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.engine.decoding.constraints import UNCONSTRAINED
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.native import library
from hmc.engine.requests.caller import Priority
from hmc.engine.runtime.programs import ProgramSessions
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.native_batch import NativeSearchBatch
from hmc.engine.support import executor_of
from hmc.serving import DecodeOptions, Translator
from hmc.serving.client import Client
from hmc.serving.server.background import BackgroundServer
from hmc.serving.server.settings import ServerSettings

pytestmark = pytest.mark.skipif(library.best() is None, reason="there is no native executor for this machine")
MORE = {
    "patience": DecodeOptions(beam_size=3, patience=2.0, n_best=3),
    "patience of one": DecodeOptions(beam_size=1, patience=1.0),
    "penalty": DecodeOptions(length_penalty=0.0, n_best=2, token_scores=True),
    "short": DecodeOptions(beam_size=2, max_length=3),
    "long": DecodeOptions(beam_size=2, min_length=20, max_length=30),
}


@pytest.mark.parametrize("level", ["h12", "h12-int8"])
@pytest.mark.parametrize("name", [*OPTIONS, *MORE])
def test_every_option(lively_bundle: Path, level: str, name: str) -> None:
    options = (OPTIONS | MORE)[name]
    assert translated(lively_bundle, level, "native", options) == translated(lively_bundle, level, "reference", options)


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("level", ["full-int8", "full-int8-shortlist"])
def test_prefixes_and_given_translations(lively_bundle: Path, listed_bundle: Path, level: str, beam: int) -> None:
    """Their tokens are in the shortlist, whatever the source is."""
    bundle = listed_bundle if level.endswith("shortlist") else lively_bundle
    options = DecodeOptions(beam_size=beam)
    found = {}
    for executor in ("native", "reference"):
        with Translator(bundle, level, device="cpu", executor=executor) as translator:
            begun = translator.translate(TEXTS, options, ["Two dogs"] * len(TEXTS), segmentation="none")
            scored = translator.score(TEXTS, TEXTS[::-1], DecodeOptions(token_scores=True))
            found[executor] = begun, scored
    assert found["native"] == found["reference"]


@pytest.mark.parametrize("name", [*OPTIONS, *MORE])
def test_shortlists(listed_bundle: Path, name: str) -> None:
    level, options = "full-int8-shortlist", (OPTIONS | MORE)[name]
    ours = translated(listed_bundle, level, "native", options)
    assert ours == translated(listed_bundle, level, "reference", options)


def test_levels_in_int8_are_its_own(listed_bundle: Path) -> None:
    """Those with shortlists too; levels of other precisions stay with ONNX Runtime."""
    levels = read_manifest(listed_bundle).levels
    assert {level.name: executor_of(level, "auto", cpu=True, native=True) for level in levels} == {
        "full-shortlist": "onnxruntime",
        "full-int8-shortlist": "native",
        "full-int4-shortlist": "onnxruntime",
    }
    assert {executor_of(level, "auto", cpu=False, native=True) for level in levels} == {"onnxruntime"}
    assert {executor_of(level, "auto", cpu=True, native=False) for level in levels} == {"onnxruntime"}


@pytest.mark.parametrize("priority", [Priority.INTERACTIVE, Priority.BULK])
def test_many_callers_at_once_and_some_that_leave(lively_bundle: Path, priority: Priority) -> None:
    """Every answer is that of the sentence alone, whoever else comes, waits or is cancelled. What bulk has found comes
    back together."""
    options = DecodeOptions(beam_size=2)
    with Translator(lively_bundle, "h12-int8", device="cpu", threads=1, workers=2, executor="native") as translator:
        alone = [translator.translate([text], options, segmentation="none")[0] for text in TEXTS]
        wrong = []

        def ask(text: int) -> None:
            for turn in range(20):
                future = translator.submit(
                    TEXTS[text], replace(options, min_length=40, max_length=60), priority=priority
                )
                if turn % 3 == 0:
                    future.cancel()
                found = translator.submit(TEXTS[text], options, priority=priority).result()
                if found != alone[text]:
                    wrong.append(found)

        threads = [threading.Thread(target=ask, args=(text,)) for text in range(len(TEXTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("interactive", "many", "together"), [(True, 9, [1, 1, 1]), (False, 9, [3]), (False, 2, [2, 1])]
)
def test_what_bulk_has_found_comes_back_together(
    lively_bundle: Path, interactive: bool, many: int, together: list[int]
) -> None:
    """And an interactive sentence does not wait for the others."""
    with Translator(lively_bundle, "h12-int8", device="cpu", executor="native") as translator:
        engine = translator._engine
        assert isinstance(engine, Engine)
        sessions = engine.sessions
        assert isinstance(sessions, ProgramSessions)
        mode = Mode(1, "search_greedy", interactive)
        batch = NativeSearchBatch(sessions, mode, many)
        options = DecodeOptions(beam_size=1)
        batch.admit([Job([5, 9, 0], options, UNCONSTRAINED, Rules(n, min_length=n), mode) for n in (9, 3, 5)])
        found = []
        while batch.jobs:
            batch._step_s = 1e-6  # a millisecond is many steps
            found.append([job.rules.limit for job, decoded in batch.step(lambda: True).ended if decoded])
        batch.close()
    assert [len(each) for each in found] == together
    assert [limit for each in found for limit in each] == [3, 5, 9]


def test_a_server_streams_pieces(lively_bundle: Path) -> None:
    settings = ServerSettings(port=0, device="cpu", levels=("h5-int8",), default_level="h5-int8", executor="native")
    with BackgroundServer(lively_bundle, settings) as running, Client(running.address) as client:
        answer = client.translate(TEXTS, segmentation="none")
        assert [each.text for each in answer] == [
            each.text for each in translated(lively_bundle, "h5-int8", "reference", DecodeOptions())
        ]


def test_where_it_was_not_built(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "best", lambda: None)
    with pytest.raises(InvalidRequestError, match="this installation has no library for it; build it"):
        Translator(lively_bundle, "h12-int8", device="cpu", executor="native")
