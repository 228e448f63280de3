"""Positions of target tokens: each row of a beam sees exactly its hypothesis, and single rows grow as they need."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hmc.engine.caches.positions import RowPositions, TreePositions


@settings(max_examples=60, deadline=None)
@given(beam=st.integers(1, 5), steps=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_a_row_sees_exactly_the_tokens_of_its_hypothesis(beam: int, steps: int, seed: int) -> None:
    """Sentences join and leave at random. Names stand for keys and values."""
    rng, tree = np.random.default_rng(seed), TreePositions(beam, 1, 4)
    held: list[dict[int, int]] = []
    """For each sentence: position → the name that was written there last."""
    hypotheses: list[list[list[int]]] = []
    for step in range(steps):
        if not held or rng.random() < 0.2:
            tree.add(2)
            held += [{}, {}]
            hypotheses += [[[] for _ in range(beam)] for _ in range(2)]
        for sentence, positions in enumerate(tree.allocate()):
            for row, position in enumerate(positions.tolist()):
                name = (step * 100 + sentence) * 10 + row
                held[sentence][position] = name
                hypotheses[sentence][row] = [*hypotheses[sentence][row], name]
        for sentence, seen in enumerate(tree.seen):
            for row in range(beam):
                names = sorted(held[sentence][p] for p in np.flatnonzero(seen[row]).tolist())
                assert names == hypotheses[sentence][row]
        parents = rng.integers(0, beam, (len(held), beam))
        tree.reorder(parents)
        hypotheses = [[h[p] for p in row] for h, row in zip(hypotheses, parents.tolist(), strict=True)]
        if len(held) > 1 and rng.random() < 0.2:
            order = rng.permutation(len(held))[: rng.integers(1, len(held) + 1)].tolist()
            tree.keep(order)
            held, hypotheses = [held[i] for i in order], [hypotheses[i] for i in order]


def test_a_sentences_positions_do_not_depend_on_the_rest_of_the_batch() -> None:
    alone, together = TreePositions(2, 1, 4), TreePositions(2, 1, 4)
    alone.add(1)
    together.add(3)
    rng = np.random.default_rng(0)
    for _ in range(40):
        assert (alone.allocate()[0] == together.allocate()[1]).all()
        parents = rng.integers(0, 2, (3, 2))
        parents[0] = [0, 1]  # the first sentence's beams never meet, so its tree grows fastest
        alone.reorder(parents[1:2])
        together.reorder(parents)
    assert together.capacity >= 80


def test_positions_of_tokens_that_no_row_continues_are_used_again() -> None:
    tree = TreePositions(4, 1, 32)
    tree.add(1)
    for _ in range(28):
        tree.allocate()
        tree.reorder(np.zeros((1, 4), np.int64))
    assert tree.capacity == 32
    assert tree.seen.any(axis=1).sum() == 28


def test_unused_slots_write_and_read_position_0_of_themselves() -> None:
    tree = TreePositions(2, 3, 8, masked=-1e4)
    tree.add(2)
    tree.allocate()
    inputs = tree.next_inputs({}, np.array([3, 1]), 4)
    places, bias = inputs["node_places"], inputs["node_bias"]
    assert (places[..., 0] == np.arange(4)[:, None, None]).all()
    assert (places[..., 1] == np.arange(3)).all()
    assert places[:, :, 0, 2].tolist() == [[0, 0], [2, 3], [0, 0], [2, 3]]
    assert (bias[[0, 2], 0] == np.where(np.arange(8) == 0, 0, np.float32(-1e4))).all()
    for sentence, slot in enumerate((3, 1)):
        assert ((bias[slot, 0] == 0) == tree.seen[sentence]).all()


def test_rows_grow_by_blocks() -> None:
    host = RowPositions(32)
    for length, total, capacity in [(0, 1, 32), (31, 32, 32), (32, 33, 64), (70, 71, 96)]:
        step = {"lengths": np.array([length, 0], np.int32)}
        assert host.needed(step) == total
        assert (host.next_inputs(step)["total_length"][0], host.capacity) == (total, capacity)
        assert host.steps_ahead == capacity - total
    host.reset()
    assert (host.capacity, host.steps_ahead) == (32, 32)


def test_a_device_sets_the_capacity_before_the_step_that_needs_it() -> None:
    rows, tree, step = (
        RowPositions(0, fixed_total=True),
        TreePositions(2, 3, 0),
        {"lengths": np.array([63, 0], np.int32)},
    )
    rows.resize(64)
    assert (rows.needed(step), rows.next_inputs(step), rows.capacity) == (64, {}, 64)
    tree.add(1)
    assert tree.needed({}) == 2
    tree.resize(4)
    for _ in range(2):
        tree.allocate()
        tree.reorder(np.array([0, 1]))
    seen = tree.seen.copy()
    assert tree.needed({}) == 6
    tree.resize(16)
    assert (tree.seen[:, :, :4] == seen).all()
    assert not tree.seen[:, :, 4:].any()
    assert tree.allocate().tolist() == [[4, 5]]


def test_a_step_ahead_counts_one_more_token() -> None:
    rows, inputs = RowPositions(32), {"total_length": np.array([9], np.int32)}
    rows.next_inputs({"lengths": np.array([8], np.int32)})
    rows.advance(inputs)
    assert (inputs["total_length"][0], rows.steps_ahead) == (10, 22)
