"""The chain of geometries: rooms, slots, pools, and the way from one geometry to another."""

from __future__ import annotations

import itertools

import pytest

from hmc.engine.caches.geometry import Chain, Geometry

CHAINS = [
    Chain(4, 128, 32768, 512, tree=True),
    Chain(1, 128, 32768, 512, tree=False),
    Chain(1, 128, 1000, 200, tree=True),
    Chain(3, 2, 1, 20, tree=True),
]


def test_rooms_double_up_to_the_positions_of_the_model() -> None:
    rooms = [(g.source, g.target, g.nodes, g.slots) for g in CHAINS[0]]
    assert rooms == [
        (32, 64, 64, 32), (32, 64, 256, 32), (64, 128, 128, 32), (64, 128, 512, 32), (128, 256, 256, 32),
        (128, 256, 1024, 32), (256, 512, 512, 16), (256, 512, 2048, 16), (512, 512, 512, 16), (512, 512, 2048, 16),
    ]  # fmt: skip
    assert [(g.source, g.target, g.nodes) for g in Chain(1, 8, 1000, 100, tree=False)] == [
        (32, 64, 0), (64, 112, 0), (112, 112, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_slots_keep_to_both_bounds_but_one_sentence_always_fits(chain: Chain) -> None:
    for geometry in chain:
        rows = geometry.slots * geometry.rows
        assert geometry.slots == 1 or rows * max(geometry.source, geometry.target) <= 32768
        assert geometry.slots == 1 or rows <= 128
        assert geometry.sizes()[-1] == geometry.slots
        assert [geometry.size_for(n) >= n for n in range(1, geometry.slots + 1)] == [True] * geometry.slots
    assert chain.slots(len(chain.buckets) - 1) >= 1


@pytest.mark.parametrize("chain", CHAINS)
def test_every_growth_goes_from_pool_to_pool_and_loses_no_room(chain: Chain) -> None:
    def rooms(geometry: Geometry) -> tuple[int, int, int]:
        return geometry.source, geometry.target, geometry.nodes

    for present in chain:
        for bucket in range(len(chain.buckets)):
            wanted = chain.geometry(bucket, present)
            assert wanted.bucket >= bucket
            path = [present, *chain.path(present, wanted)]
            assert path[-1] == wanted
            assert len(path) <= 3
            for one, other in itertools.pairwise(path):
                assert one.pool != other.pool
                assert all(a <= b for a, b in zip(rooms(one), rooms(other), strict=True))


def test_a_tree_without_free_nodes_becomes_full() -> None:
    chain = CHAINS[0]
    tight = chain.geometry(1)
    assert (tight.nodes, tight.full) == (128, False)
    full = chain.geometry(1, tight, nodes=129)
    assert (full.nodes, full.full, full.bucket) == (512, True, 1)
    assert chain.geometry(2, full) == chain.buckets[2][1]
    with pytest.raises(ValueError, match="no geometry has 2049 nodes"):
        chain.geometry(4, full, nodes=2049)


def test_the_bucket_of_a_sentence() -> None:
    chain = CHAINS[1]
    assert [chain.bucket_for(*each) for each in ((32, 64), (33, 64), (5, 65), (512, 511))] == [0, 1, 1, 4]
    with pytest.raises(ValueError, match="no room for 513 source"):
        chain.bucket_for(513, 1)
