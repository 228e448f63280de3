"""What the encoder takes together."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.serving.padding import A_CALL, MOST, alike


@pytest.mark.parametrize("seed", range(20))
def test_every_sentence_once_and_little_padding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 120, size=rng.integers(1, 200)).tolist()
    groups = alike(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[i] for i in group)
        assert sum(longest - lengths[i] for i in group) <= A_CALL
        assert len(group) * longest <= MOST
    firsts = [lengths[group[0]] for group in groups]
    assert firsts == sorted(firsts, reverse=True)


def test_sentences_of_one_length_are_one_group() -> None:
    assert alike([24] * 32) == [list(range(32))]
    assert alike([10, 30, 10]) == [[1], [0, 2]]
    assert alike([7]) == [[0]]


def test_memory_bounds_a_group_but_never_a_sentence() -> None:
    assert [len(group) for group in alike([1024] * 20)] == [8, 8, 4]
    assert alike([3 * MOST, 3 * MOST]) == [[0], [1]]
