"""Head layouts: construction, containment, ranking."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hmc.artifact import Head, HeadLayout, InvalidRequestError
from hmc.artifact.model.heads import KINDS, rank_heads, select_heads


def test_full_layout_counts_every_head() -> None:
    assert HeadLayout.full(6, 6, 8).total == 144


def test_json_round_trip_of_uneven_layout() -> None:
    value = {"encoder_self": [[0, 3], []], "decoder_self": [[1], [2]], "cross": [[], [0, 1, 2]]}
    assert HeadLayout.from_json(value).to_json() == value
    assert HeadLayout.from_json(value).counts() == {"encoder_self": [2, 0], "decoder_self": [1, 1], "cross": [0, 3]}


@pytest.mark.parametrize("row", [[0, 0], [-1], [1, 0], [True], ["0"], [0.5], [1.0], [None], 0, "0"])
def test_rows_must_be_ascending_distinct_indices(row: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"encoder_self\.0"):
        HeadLayout.from_json({"encoder_self": [row], "decoder_self": [[]], "cross": [[]]})


def test_heads_may_come_in_any_order() -> None:
    heads = [Head("cross", 0, 2), Head("cross", 0, 0), Head("encoder_self", 0, 1)]
    assert HeadLayout.from_heads(heads, 1, 1) == HeadLayout(((1,),), ((),), ((0, 2),))


def test_missing_kind_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="exactly the keys"):
        HeadLayout.from_json({"encoder_self": [[0]]})


def test_select_keeps_the_highest_scores_whatever_their_kind() -> None:
    layout = HeadLayout.full(1, 1, 2)
    scores = {
        "encoder_self": np.array([[1.0, 9.0]]),
        "decoder_self": np.array([[2.0, 3.0]]),
        "cross": np.array([[8.0, 0.0]]),
    }
    chosen = select_heads({k: scores[k].astype(np.float32) for k in KINDS}, layout, 3)
    assert list(chosen.heads()) == [Head("encoder_self", 0, 1), Head("decoder_self", 0, 1), Head("cross", 0, 0)]


def test_smaller_selections_are_nested_in_larger_ones() -> None:
    layout, rng = HeadLayout.full(3, 2, 4), np.random.default_rng(0)
    scores = {k: rng.standard_normal((len(layout[k]), 4)).astype(np.float32) for k in KINDS}
    chain = [select_heads(scores, layout, n) for n in (28, 15, 7, 0)]
    assert [c.total for c in chain] == [28, 15, 7, 0]
    assert all(large.contains(small) for large, small in pairwise(chain))
    assert rank_heads(scores, layout)[:7] == sorted(chain[2].heads(), key=rank_heads(scores, layout).index)


def test_select_refuses_more_heads_than_there_are() -> None:
    layout = HeadLayout.full(1, 1, 2)
    with pytest.raises(InvalidRequestError, match="choose 0 to 6"):
        select_heads({k: np.zeros((1, 2), np.float32) for k in KINDS}, layout, 7)


def test_restrict_names_heads_that_are_gone() -> None:
    small = HeadLayout.from_json({"encoder_self": [[1]], "decoder_self": [[0]], "cross": [[0]]})
    with pytest.raises(InvalidRequestError, match=r"encoder_self\.0\.0"):
        small.restrict(HeadLayout.full(1, 1, 1))
    assert HeadLayout.full(1, 1, 3).restrict(small)["encoder_self"] == [[1]]
