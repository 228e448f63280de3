"""Log-probabilities that are NaN or +inf fail their sentence: no search returns them, hides them or runs for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from hmc.artifact.model.architecture import Architecture
from hmc.engine.arrays import Arrays, Ints
from hmc.engine.caches.interface import Caches
from hmc.engine.decoding import beam, greedy, sampling
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.state import DecodeState, Rules
from hmc.engine.decoding.strategies import SamplingStrategy
from hmc.engine.scheduling.batch import run_ahead
from hmc.serving import DecodeOptions, Sampling

PAD, EOS, A, B, C = range(5)
LIMIT = 6
BAD = [float("nan"), float("inf")]
Scores = npt.NDArray[np.float32]


def candidates(rows: int, k: int) -> tuple[Scores, Ints]:
    """The same for each row: A is best, then B, C and EOS."""
    width = beam.candidates_needed(k)
    ids = np.tile(np.resize([A, B, C, EOS], width), (rows, 1)).astype(np.int64)
    return np.tile(np.log(np.linspace(0.5, 0.01, width)), (rows, 1)).astype(np.float32), ids


def states(k: int, *, independent: bool = False) -> Iterator[tuple[DecodeState, int]]:
    """Two sentences, of which the second goes bad: at the first step, in the middle, and at the last."""
    for bad_at in (0, 2, LIMIT - 1):
        state = DecodeState(k, PAD, EOS)
        state.add([Rules(LIMIT), Rules(LIMIT)], independent=independent)
        yield state, bad_at


def failed(state: DecodeState, sentence: int) -> bool:
    return [(h.ids, np.isnan(h.score), h.complete) for h in state.finished[sentence]] == [((), True, False)]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("where", ["all", "one candidate", "one row"])
def test_beam_search(value: float, k: int, where: str) -> None:
    for state, bad_at in states(k):
        for step in range(bad_at + 1):
            scores, ids = candidates(2 * k, k)
            if step == bad_at:
                part: Any = {"all": np.s_[k:], "one candidate": np.s_[k, -1], "one row": np.s_[k]}[where]
                scores[part] = value
            result = beam.advance(state, scores, ids)
            assert (1 in result.done) == (step == bad_at)
        assert failed(state, 1)
        assert not failed(state, 0)
        assert np.isfinite(state.scores[0, 0]) or bad_at == LIMIT - 1


@pytest.mark.parametrize("value", BAD)
def test_greedy_search(value: float) -> None:
    for state, bad_at in states(1):
        for step in range(bad_at + 1):
            scores, ids = candidates(2, 1)
            if step == bad_at:
                scores[1] = value
            result = greedy.advance(state, scores, ids)
            assert (1 in result.done) == (step == bad_at)
        assert failed(state, 1)
        assert state.row(0, 0) == (A,) * (bad_at + 1)


@pytest.mark.parametrize("value", BAD)
def test_sampling(value: float) -> None:
    for state, bad_at in states(2, independent=True):
        for step in range(bad_at + 1):
            scores = np.full(4, -0.5, np.float32)
            if step == bad_at:
                scores[3] = value
            result = sampling.advance(state, np.full(4, A), scores, np.zeros(4, bool))
            assert (1 in result.done) == (step == bad_at)
        assert failed(state, 1)
        assert not failed(state, 0)


def test_a_row_that_has_ended_may_give_anything() -> None:
    state = DecodeState(2, PAD, EOS)
    state.add([Rules(LIMIT)], independent=True)
    sampling.advance(state, np.array([EOS, A]), np.full(2, -0.5, np.float32), np.zeros(2, bool))
    sampling.advance(state, np.array([A, EOS]), np.array([np.nan, -0.5], np.float32), np.zeros(2, bool))
    assert sorted((h.ids, h.score) for h in state.finished[0]) == [((), -0.5), ((A,), -0.5)]


def sampled_outputs(rows: int) -> Arrays:
    scores = np.tile(np.array([-0.5, -1.0, -2.0], np.float32), (rows, 1))
    return {
        "sampled": np.full(rows, B, np.int64),
        "sampled_scores": np.full(rows, -1.0, np.float32),
        "weights": np.exp(scores),
        "scores": scores,
        "ids": np.tile(np.array([A, B, C]), (rows, 1)),
    }


@pytest.mark.parametrize("top_k", [None, 2])
def test_weights_that_are_no_numbers_are_an_end_or_a_failure(top_k: int | None) -> None:
    """The graph's softmax gives NaN where all tokens are banned, and where the log-probabilities are NaN."""
    options = DecodeOptions(sampling=Sampling(seed=1, top_k=top_k))
    job: Any = SimpleNamespace(options=options, constraints=Constraints(), uniforms=np.zeros((1, LIMIT), np.float32))
    state = DecodeState(1, PAD, EOS)
    state.add([Rules(LIMIT)] * 3, independent=True)
    outputs = sampled_outputs(3)
    outputs["weights"][1:] = np.nan
    outputs["scores"][2] = outputs["sampled_scores"][2] = np.nan
    result = SamplingStrategy(cast(Architecture, None)).advance(state, [job] * 3, outputs)
    assert result.done.tolist() == [1, 2]
    assert state.row(0, 0) == ((B,) if top_k is None else (A,))
    assert [(h.ids, h.score) for h in state.finished[1]] == [((), 0.0)]
    assert failed(state, 2)


class Steps:
    """Caches whose steps return scores and ids that are given beforehand."""

    steps_ahead = LIMIT

    def __init__(self, scores: Sequence[Scores], ids: Ints) -> None:
        self._scores, self._ids = iter(scores), ids

    def run_next(self, _: Ints) -> Arrays:
        return {"scores": next(self._scores), "ids": self._ids}


@pytest.mark.parametrize("value", BAD)
def test_steps_ahead_stop_before_it(value: float) -> None:
    state = DecodeState(1, PAD, EOS)
    state.add([Rules(LIMIT)] * 2)
    good, ids = candidates(2, 1)
    bad = good.copy()
    bad[1] = value
    outputs = run_ahead(cast(Caches, Steps([good, bad], ids)), state, {"scores": good, "ids": ids}, lambda: True)
    assert outputs["scores"] is bad
    assert state.lengths.tolist() == [2, 2]
    assert greedy.advance(state, outputs["scores"], outputs["ids"]).done.tolist() == [1]
    assert failed(state, 1)
