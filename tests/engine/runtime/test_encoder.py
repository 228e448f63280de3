"""Groups of sentences that are encoded in one call."""

from __future__ import annotations

import numpy as np
import pytest

from hmc.engine.runtime.encoder import (
    CALL_POSITIONS,
    DEVICE_POSITIONS,
    MAX_PADDING,
    MAX_POSITIONS,
    DeviceGroup,
    device_groups,
    encoder_groups,
)


@pytest.mark.parametrize("seed", range(20))
def test_every_sentence_is_in_one_group_with_little_padding(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 120, size=rng.integers(1, 200)).tolist()
    groups = encoder_groups(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        longest = max(lengths[i] for i in group)
        assert sum(longest - lengths[i] for i in group) <= MAX_PADDING
        assert len(group) * longest <= MAX_POSITIONS
    firsts = [lengths[group[0]] for group in groups]
    assert firsts == sorted(firsts, reverse=True)


def test_sentences_of_one_length_are_one_group() -> None:
    assert encoder_groups([24] * 32) == [list(range(32))]
    assert encoder_groups([10, 30, 10]) == [[1], [0, 2]]
    assert encoder_groups([7]) == [[0]]


def test_memory_bounds_a_group_but_not_a_single_sentence() -> None:
    assert [len(group) for group in encoder_groups([1024] * 20)] == [8, 8, 4]
    assert encoder_groups([3 * MAX_POSITIONS, 3 * MAX_POSITIONS]) == [[0], [1]]


@pytest.mark.parametrize("seed", range(20))
def test_calls_of_a_device_have_few_shapes_and_cost_no_more_than_one_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, room = rng.integers(1, 257, size=rng.integers(1, 200)).tolist(), 256
    groups = device_groups(lengths, room)
    assert sorted(i for group in groups for i in group.sentences) == list(range(len(lengths)))
    most = DEVICE_POSITIONS // room
    for group in groups:
        assert len(group.sentences) <= group.count <= most
        assert (group.count & (group.count - 1), group.width in (32, 64, 128, 256)) == (0, True)
        assert group.count < 2 * len(group.sentences)
        assert max(lengths[i] for i in group.sentences) <= group.width
    together = [DeviceGroup((), most, room)] * -(-len(lengths) // most)
    assert sum(group.cost for group in groups) <= sum(group.cost for group in together)


def test_a_device_splits_sentences_where_that_saves_more_than_a_call_costs() -> None:
    short, long = [20] * 31, [500]
    assert [(g.count, g.width) for g in device_groups([*short, *long], 512)] == [(32, 32), (1, 512)]
    assert 32 * 32 + 512 + CALL_POSITIONS < 32 * 512
    assert [(g.count, g.width) for g in device_groups([*short[:5], 60], 64)] == [(8, 64)]
    assert device_groups([7], 32) == [DeviceGroup((0,), 1, 32)]


def test_a_device_bounds_the_memory_of_a_call() -> None:
    assert [g.count for g in device_groups([500] * 40, 512)] == [32, 8]
    assert [g.count for g in device_groups([500, 500], 4 * DEVICE_POSITIONS)] == [1, 1]
