"""The tree of a beam search: every row sees its own hypothesis, whatever rows did to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hmc.serving.nodes import Nodes


@settings(max_examples=60, deadline=None)
@given(beam=st.integers(1, 5), steps=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_a_row_sees_exactly_the_nodes_of_its_hypothesis(beam: int, steps: int, seed: int) -> None:
    """Sentences join and leave at random; written names stand for keys and values."""
    rng, nodes = np.random.default_rng(seed), Nodes(beam, 4)
    held: list[dict[int, int]] = []
    """Per sentence, place → name of the node last written there."""
    hypotheses: list[list[list[int]]] = []
    for step in range(steps):
        if not held or rng.random() < 0.2:
            nodes.add(2)
            held += [{}, {}]
            hypotheses += [[[] for _ in range(beam)] for _ in range(2)]
        for sentence, places in enumerate(nodes.place()):
            for row, place in enumerate(places.tolist()):
                name = (step * 100 + sentence) * 10 + row
                held[sentence][place] = name
                hypotheses[sentence][row] = [*hypotheses[sentence][row], name]
        for sentence, seen in enumerate(nodes.seen):
            for row in range(beam):
                names = sorted(held[sentence][p] for p in np.flatnonzero(seen[row]).tolist())
                assert names == hypotheses[sentence][row]
        parents = rng.integers(0, beam, (len(held), beam))
        nodes.follow(parents)
        hypotheses = [[h[p] for p in row] for h, row in zip(hypotheses, parents.tolist(), strict=True)]
        if len(held) > 1 and rng.random() < 0.2:
            order = rng.permutation(len(held))[: rng.integers(1, len(held) + 1)].tolist()
            nodes.keep(order)
            held, hypotheses = [held[i] for i in order], [hypotheses[i] for i in order]


def test_a_sentences_places_do_not_depend_on_its_neighbours() -> None:
    alone, together = Nodes(2, 4), Nodes(2, 4)
    alone.add(1)
    together.add(3)
    rng = np.random.default_rng(0)
    for _ in range(40):
        assert (alone.place()[0] == together.place()[1]).all()
        parents = rng.integers(0, 2, (3, 2))
        parents[0] = [0, 1]  # the first sentence's beams never meet, so its tree grows fastest
        alone.follow(parents[1:2])
        together.follow(parents)
    assert together.room >= 80


def test_what_no_row_follows_makes_room() -> None:
    nodes = Nodes(4, 32)
    nodes.add(1)
    for _ in range(28):
        nodes.place()
        nodes.follow(np.zeros((1, 4), np.int64))
    assert nodes.room == 32
    assert nodes.seen.any(axis=1).sum() == 28
