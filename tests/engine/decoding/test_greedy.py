"""A step of greedy search does what a step of beam search of size 1 does, whatever the candidates."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from hmc.engine.decoding import beam, greedy
from hmc.engine.decoding.state import DecodeState, Rules

PAD, EOS, VOCABULARY = 0, 1, 12
Candidates = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def candidates(rng: np.random.Generator, rows: int, common: float) -> Candidates:
    """`[rows, K]` as the graph gives them; pad and EOS are `common`, some tokens may not be chosen."""
    logits = rng.normal(size=(rows, VOCABULARY)) + np.where(np.arange(VOCABULARY) < 2, common, 0.0)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = np.argsort(-log_probs, axis=1)[:, : beam.candidates_needed(1) + 2]
    scores = np.take_along_axis(log_probs, ids, axis=1).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf  # banned
    return scores, ids


def same(a: DecodeState, b: DecodeState) -> bool:
    names = ("scores", "lengths", "last")
    written = [
        all(
            a.row(n, 0) == b.row(n, 0)
            and np.array_equal(a.token_scores[n, 0, : a.lengths[n]], b.token_scores[n, 0, : b.lengths[n]])
            for n in range(len(a))
        )
    ]
    return all([*(np.array_equal(getattr(a, n), getattr(b, n)) for n in names), *written, a.finished == b.finished])


@given(st.integers(0, 10**6), st.integers(1, 6), st.sampled_from([-3.0, 0.0, 1.5]), st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_a_greedy_step_is_a_step_of_beam_search(seed: int, sentences: int, common: float, shortest: int) -> None:
    rng = np.random.default_rng(seed)
    state = DecodeState(1, PAD, EOS)
    state.add([Rules(int(limit), 1.0, shortest) for limit in rng.integers(shortest, 8, sentences)])
    ran = 0
    while len(state):
        found = candidates(rng, len(state), common)
        other = copy.deepcopy(state)
        result = greedy.advance(state, found[0].copy(), found[1].copy())
        expected = beam.advance(other, *found)
        assert result.done.tolist() == expected.done.tolist()
        assert result.parents.tolist() == expected.parents.tolist()
        done = set(result.done.tolist())
        stay = [n for n in range(len(state)) if n not in done]
        assert all(state.finished[n] == other.finished[n] for n in done)
        state.keep(stay)
        other.keep(stay)
        assert same(state, other)
        ran += 1
        if stay and rng.random() < 0.3:
            state.add([Rules(5, 1.0, shortest)])
        assert ran < 200
