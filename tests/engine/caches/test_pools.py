"""Pools of device memory: fixed addresses, growth from one pool into the other, and memory that is given back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.caches.geometry import Chain
from hmc.engine.caches.pools import CacheShape, Pools
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.account import DeviceMemory, LevelMemory, MemoryBudget
from hmc.engine.runtime.memory.views import DeviceArray, bytes_at

CHAIN = Chain(2, 16, 512, 128, tree=True)
CACHES = {
    "past_key_0": CacheShape("tensor(float)", ("B", 3, "N", 4)),
    "cross_key_0": CacheShape("tensor(float)", ("B", 2, "S", 4)),
    "node_bias": CacheShape("tensor(float16)", ("B", 1, "k", "N"), -1e4),
}


def account(budget: int = 1 << 30) -> LevelMemory:
    memory = DeviceMemory(Device("cpu"))
    memory.limit(MemoryBudget(budget))
    return LevelMemory(memory, "h12")


def content(view: DeviceArray) -> npt.NDArray[Any]:
    kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return bytes_at(view.address, view.bytes).view(kinds[view.type]).reshape(view.shape)


def test_addresses_stay_and_neighbours_lie_apart() -> None:
    pools = Pools(CACHES, account())
    views = {geometry: pools.views(geometry) for geometry in CHAIN}
    assert all(pools.views(geometry) is views[geometry] for geometry in CHAIN)
    for one in CHAIN:
        spans = sorted((v.address, v.address + v.bytes) for v in views[one].values())
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
        for other in (each for each in CHAIN if each.pool != one.pool):
            theirs = [(v.address, v.address + v.bytes) for v in views[other].values()]
            assert all(end <= begin or last <= start for start, end in spans for begin, last in theirs)


@pytest.mark.parametrize("kept", [True, False])
def test_caches_move_into_larger_ones(kept: bool) -> None:
    """kept: all sentences keep their slots; otherwise one of them has to move, because the larger one has fewer."""
    pools, rng = Pools(CACHES, account()), np.random.default_rng(0)
    small = CHAIN.geometry(0)
    large = CHAIN.geometry(1, small)
    assert (small.slots, large.slots) == (4, 2)
    before = {}
    for name, view in pools.views(small).items():
        content(view)[...] = rng.normal(size=view.shape)
        before[name] = content(view).copy()
    pools.move(small, large, () if kept else [(3, 0)])
    order = [0, 1] if kept else [3, 1]
    for name, view in pools.views(large).items():
        after, old = content(view), before[name][order]
        np.testing.assert_array_equal(after[tuple(slice(n) for n in old.shape)], old)
    bias = content(pools.views(large)["node_bias"])
    assert (bias[..., small.nodes :] == np.float16(-1e4)).all()


def test_memory_is_that_of_the_two_largest_when_all_is_taken_at_once() -> None:
    def needed(pool: int, filled: bool) -> int:
        return max(Pools(CACHES, account())._layout(g, filled=filled)[1] for g in CHAIN if g.pool == pool)

    pools = Pools(CACHES, account())
    pools.take_all(CHAIN)
    assert pools.bytes == sum(needed(pool, filled) for pool in (0, 1) for filled in (False, True))


def test_keys_and_values_never_find_the_numbers_of_masks() -> None:
    """A key of -10 000 would outweigh the mask that is to hide it."""
    pools = Pools(CACHES, account())
    pools.take_all(CHAIN)
    views = [(name, view) for geometry in CHAIN for name, view in pools.views(geometry).items()]
    masks = [(v.address, v.address + v.bytes) for name, v in views if name == "node_bias"]
    others = [(v.address, v.address + v.bytes) for name, v in views if name != "node_bias"]
    assert all(end <= begin or last <= start for start, end in masks for begin, last in others)


def test_memory_is_accounted_and_given_back() -> None:
    memory = account()
    pools = Pools(CACHES, memory)
    pools.take_all(CHAIN)
    assert memory.reserved == pools.bytes > 0
    pools.close()
    assert memory.reserved == pools.bytes == 0
    with pytest.raises(FailedPreconditionError, match="too little memory for caches of level h12"):
        Pools(CACHES, account(1000)).take_all(CHAIN)
