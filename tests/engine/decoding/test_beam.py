"""Beam search with hand-written log-probabilities: exact ids, no model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hmc.engine.decoding.beam import advance, candidates_needed
from hmc.engine.decoding.state import DecodeState, Rules

PAD, EOS, A, B, C = range(5)
Row = dict[int, float]
Model = Callable[[tuple[int, ...]], Row]


def search(
    model: Model, *, beam: int, limit: int = 10, penalty: float = 1.0, sentences: int = 1, rules: Rules | None = None
) -> DecodeState:
    """Runs the search to its end with `model`: tokens so far → probability per next token."""
    state = DecodeState(beam, PAD, EOS)
    state.add([rules or Rules(limit, penalty)] * sentences)
    for _ in range(limit + 1):
        width = candidates_needed(beam)
        scores, ids = (
            np.full((sentences * beam, width), -np.inf, np.float32),
            np.zeros((sentences * beam, width), np.int64),
        )
        for row in range(sentences * beam):
            so_far = tuple(state.tokens[row // beam, row % beam, : state.lengths[row // beam]].tolist())
            best = sorted(model(so_far).items(), key=lambda kv: -kv[1])[:width]
            for column, (token, p) in enumerate(best):
                scores[row, column], ids[row, column] = np.log(p), token
        result = advance(state, scores, ids)
        if len(result.done) == sentences:
            return state
    raise AssertionError("the search never ended")


def garden_path(so_far: tuple[int, ...]) -> Row:
    """Greedy search starts with A (0.5) and ends with 0.5 · 0.4. B (0.4) is followed by EOS almost surely."""
    if not so_far:
        return {A: 0.5, B: 0.4, C: 0.1}
    if so_far == (A,):
        return {EOS: 0.4, C: 0.3, B: 0.3}
    return {EOS: 0.99, A: 0.005, B: 0.005}


def test_greedy_takes_the_best_token_each_time() -> None:
    state = search(garden_path, beam=1)
    assert [h.ids for h in state.finished[0]] == [(A,)]
    assert state.finished[0][0].score == pytest.approx(np.log(0.5 * 0.4) / 2)


def test_a_beam_finds_what_greedy_misses() -> None:
    state = search(garden_path, beam=2)
    assert state.finished[0][0].ids == (B,)
    assert state.finished[0][0].score == pytest.approx(np.log(0.4 * 0.99) / 2)
    assert state.finished[0][0].complete


def test_n_best_are_sorted_and_distinct() -> None:
    found = search(garden_path, beam=3).finished[0]
    assert len(found) == 3
    assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    assert len({h.ids for h in found}) == 3


def test_pad_is_never_chosen() -> None:
    state = search(lambda s: {PAD: 0.9, EOS: 0.04, A: 0.06} if len(s) < 1 else {PAD: 0.9, EOS: 0.1}, beam=1)
    assert state.finished[0][0].ids == (A,)


def test_length_penalty_decides_between_short_and_long() -> None:
    def model(so_far: tuple[int, ...]) -> Row:
        if not so_far:
            return {EOS: 0.3, A: 0.7}
        return {A: 0.65, EOS: 0.35} if len(so_far) < 3 else {EOS: 1.0}

    assert search(model, beam=2, penalty=0.0).finished[0][0].ids == ()
    assert search(model, beam=2, penalty=2.0).finished[0][0].ids == (A, A, A)


def test_the_limit_ends_running_hypotheses() -> None:
    state = search(lambda _: {A: 0.9, B: 0.1}, beam=2, limit=4)
    assert state.finished[0][0].ids == (A, A, A, A)
    assert not state.finished[0][0].complete


def test_sentences_leave_and_join_without_changing_the_rest() -> None:
    state = DecodeState(2, PAD, EOS)
    state.add([Rules(10)] * 3)
    scores = np.log(np.array([[0.5, 0.3, 0.1, 0.05, 0.05]] * 6, np.float32))
    ids = np.array([[A, B, C, EOS, PAD]] * 6)
    advance(state, scores, ids)
    state.keep([2, 0])
    state.add([Rules(5, 0.5)])
    assert state.lengths.tolist() == [1, 1, 0]
    assert state.last.reshape(-1).tolist() == [A, B, A, B, PAD, PAD]
    result = advance(state, scores, ids)
    assert result.parents.tolist()[:2] == [0, 0]
    assert result.parents.min() >= 0
    assert (result.parents // 2).tolist() == [0, 0, 1, 1, 2, 2]


def test_identical_sentences_behave_identically() -> None:
    state = search(garden_path, beam=2, sentences=3)
    assert state.finished[0] == state.finished[1] == state.finished[2]


def test_min_length_delays_the_end_token() -> None:
    def model(so_far: tuple[int, ...]) -> Row:
        return {EOS: 0.8, A: 0.15, B: 0.05}

    assert search(model, beam=1).finished[0][0].ids == ()
    assert search(model, beam=1, rules=Rules(10, min_length=3)).finished[0][0].ids == (A, A)
    assert search(model, beam=2, rules=Rules(3, min_length=3)).finished[0][0].ids == (A, A)


def test_patience_ends_the_search_after_so_many_hypotheses() -> None:
    for enough in (1, 2, 5):
        found = search(garden_path, beam=3, rules=Rules(10, enough=enough)).finished[0]
        assert len(found) >= enough
    assert search(garden_path, beam=2, rules=Rules(10, enough=1)).lengths[0] == 2
    assert search(garden_path, beam=2, rules=Rules(10, enough=6)).lengths[0] > 3


def test_token_scores_belong_to_the_tokens_of_their_own_hypothesis() -> None:
    for found in search(garden_path, beam=3).finished[0]:
        expected = [np.log(garden_path(found.ids[:n])[token]) for n, token in enumerate((*found.ids, EOS))]
        assert found.token_scores == pytest.approx(expected, abs=1e-6)


def test_a_sentence_without_any_candidate_returns_what_it_has() -> None:
    state = search(lambda s: {A: 1.0} if len(s) < 2 else {PAD: 1.0}, beam=2)
    assert [(h.ids, h.complete) for h in state.finished[0]] == [((A, A), False)]


def test_all_running_hypotheses_are_taken_at_a_dead_end() -> None:
    """Running hypotheses are returned as they are, as at the limit, so a request for several gets several."""
    state = search(lambda s: {A: 0.6, B: 0.3, C: 0.1} if not s else {PAD: 1.0}, beam=3)
    assert [(h.ids, h.complete) for h in state.finished[0]] == [((A,), False), ((B,), False), ((C,), False)]
    state = search(lambda s: {A: 0.6, EOS: 0.4} if not s else {PAD: 1.0}, beam=2)
    assert sorted((h.ids, h.complete) for h in state.finished[0]) == [((), True), ((A,), False)]
