"""Translations that come piece by piece: a piece is never taken back, and all pieces make the translation."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.serving.fakes import eventually
from tests.serving.reference import LIMIT, TEXTS

from hmc.artifact import InvalidRequestError
from hmc.engine.decoding.state import DecodeState, Rules
from hmc.engine.requests.results import DecodedHypothesis
from hmc.engine.scheduling.batch import certain_tokens
from hmc.serving import DecodeOptions, Sampling, Target, Translator


@pytest.mark.parametrize(
    "options",
    [
        DecodeOptions(beam_size=1, max_length=LIMIT),
        DecodeOptions(beam_size=4, max_length=LIMIT),
        DecodeOptions(sampling=Sampling(seed=3), max_length=LIMIT),
    ],
    ids=["greedy", "beam", "sampling"],
)
def test_the_pieces_make_the_translation(translator: Translator, options: DecodeOptions) -> None:
    several = 0
    for text in TEXTS:
        *pieces, last = translator.stream(text, options)
        assert last.translation is not None
        assert last.translation.text == translator.translate([text], options, segmentation="none")[0].text
        assert "".join(p.text for p in pieces) == last.translation.text
        assert all(p.translation is None and p.text for p in pieces)
        several += len(pieces) > 1
    assert several >= (2 if options.rows == 1 else 1)


def test_what_is_certain_is_what_all_hypotheses_share() -> None:
    state = DecodeState(3, pad_id=2, eos_id=0)
    state.add([Rules(10), Rules(10)])
    state.lengths[:] = 4
    state.tokens[0, :, :4] = [[5, 6, 7, 8], [5, 6, 9, 8], [5, 1, 1, 1]]
    state.scores[0] = [-1.0, -2.0, -np.inf]  # the third row does not run
    assert certain_tokens(state, 0) == (5, 6)
    state.finished[0].append(DecodedHypothesis((5,), -0.5, complete=True))
    assert certain_tokens(state, 0) == (5,)
    state.finished[0].append(DecodedHypothesis((4, 4), -0.5, complete=True))
    assert certain_tokens(state, 0) == ()


def test_no_piece_is_ever_taken_back(lively_bundle: Path) -> None:
    with Translator(lively_bundle, "full", device="cpu", threads=1, max_rows=16) as translator:
        options = DecodeOptions(beam_size=4, max_length=30, length_penalty=0.2)
        given: list[list[str]] = [[] for _ in TEXTS]
        futures = [translator.submit(t, options, None, given[n].append) for n, t in enumerate(TEXTS)]
        for text, future, pieces in zip(TEXTS, futures, given, strict=True):
            assert future.result().text == "".join(pieces), text


def test_a_blank_text_and_a_prefix(translator: Translator) -> None:
    (only,) = translator.stream("  ")
    assert only.translation is not None
    assert only.translation.text == ""
    pieces = list(translator.stream(TEXTS[0], DecodeOptions(beam_size=2, max_length=LIMIT), Target("A man")))
    assert "".join(p.text for p in pieces).startswith("A man")
    with pytest.raises(InvalidRequestError, match="not valid Unicode"):
        list(translator.stream("\ud800"))


def test_leaving_early_cancels(translator: Translator) -> None:
    stream = translator.stream(TEXTS[4], DecodeOptions(beam_size=1, max_length=95, min_length=95))
    assert next(stream).text
    stream.close()  # type: ignore[attr-defined]  # a generator
    eventually(lambda: translator.pending == 0)


def test_progress_that_raises_changes_nothing(translator: Translator, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("gone")

    options = DecodeOptions(beam_size=1, max_length=LIMIT)
    with caplog.at_level(logging.ERROR):
        found = [translator.submit(t, options, None, fail).result().text for t in TEXTS]
    assert found == [t.text for t in translator.translate(TEXTS, options, segmentation="none")]
    assert "the progress callback of a translation raised" in caplog.text
