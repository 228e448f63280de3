"""Hypotheses are read back from the history of a search on a device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hmc.engine.decoding.history import Ended, hypotheses
from hmc.engine.requests.results import DecodedHypothesis

NONE = -np.inf


def ended(**changes: Any) -> Ended:
    """One sentence of two rows. At step 1 row 0 continues row 1, and at step 2 both continue row 0."""
    arrays: dict[str, Any] = {
        "ranks": [[-0.5, NONE]],
        "totals": [[-2.0, 0.0]],
        "lengths": [[4, 9]],
        "rows": [[1, 77]],
        "complete": [[1, 1]],
        "finals": [[-0.25, 0.0]],
        "tokens": [[[10, 11], [20, 21], [30, 31], [99, 99]]],
        "parents": [[[0, 0], [1, 0], [0, 0], [55, 55]]],
        "scores": [[[-1.0, -1.5], [-2.0, -2.5], [-3.0, -3.5], [math.nan, math.nan]]],
    } | changes
    types = {"ranks": np.float64, "totals": np.float64, "finals": np.float32, "scores": np.float32}
    return Ended(**{name: np.array(value, types.get(name, np.int32)) for name, value in arrays.items()})


def test_a_hypothesis_is_followed_from_its_last_token_to_its_first() -> None:
    (found,) = hypotheses(ended(), [False], [2], [1.0])
    assert found == (DecodedHypothesis((11, 20, 31), -2.0 / 4, complete=True),)
    assert found[0].token_scores == (-1.5, -2.0, -3.5, -0.25)


def test_one_that_was_cut_off_has_no_eos() -> None:
    (found,) = hypotheses(ended(lengths=[[2, 0]], rows=[[0, 0]], complete=[[0, 0]]), [False], [1], [0.5])
    assert found == (DecodedHypothesis((11, 20), -2.0 / 2**0.5, complete=False),)
    assert found[0].token_scores == (-1.5, -2.0)


def test_one_without_tokens() -> None:
    (found,) = hypotheses(ended(lengths=[[0, 0]], complete=[[0, 0]]), [False], [1], [1.0])
    assert found == (DecodedHypothesis((), -2.0, complete=False),)
    (found,) = hypotheses(ended(lengths=[[1, 0]]), [False], [1], [1.0])
    assert found == (DecodedHypothesis((), -2.0, complete=True),)
    assert found[0].token_scores == (-0.25,)


def test_a_failed_sentence_has_one_hypothesis_that_is_no_translation() -> None:
    (found,) = hypotheses(ended(rows=[[1234, -7]], lengths=[[-1, 10**6]]), [True], [2], [1.0])
    assert [(h.ids, math.isnan(h.score), h.complete, h.token_scores) for h in found] == [((), True, False, ())]


def test_sentences_differ_in_their_number_of_hypotheses() -> None:
    both = ended(ranks=[[-0.5, -0.6]], totals=[[-2.0, -3.0]], lengths=[[4, 2]], rows=[[1, 1]])
    twice = Ended(**{name: np.concatenate([getattr(both, name)] * 2) for name in vars(both)})
    one, two = hypotheses(twice, [False, False], [1, 2], [1.0, 2.0])
    assert [h.ids for h in one] == [(11, 20, 31)]
    assert [h.ids for h in two] == [(11, 20, 31), (11,)]
    assert [h.score for h in two] == [-2.0 / 16, -3.0 / 4]
