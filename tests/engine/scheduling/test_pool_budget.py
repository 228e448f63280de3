"""The pools of a device's modes: how many are held, which are given back, and how many sentences fit."""

from __future__ import annotations

from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.scheduling.budgets import MODES, POOLS_IDLE_S, PoolBudget
from hmc.serving import DecodeOptions

BEAMS, GREEDY = Mode(4), Mode(1, "greedy")


def job(source: int, limit: int, mode: Mode = BEAMS) -> Job:
    return Job([5] * source, DecodeOptions(), Constraints(), Rules(limit), mode)


def test_a_mode_takes_as_many_sentences_as_its_longest_one_leaves_slots() -> None:
    budget = PoolBudget(32, 1024, 512)  # 4 slots of 64 target positions, 2 of 128, 1 of more
    short, longer = budget.need(job(20, 50)), budget.need(job(40, 90))
    assert [budget.take(BEAMS, 4, short) for _ in range(5)] == [True] * 4 + [False]
    budget.resize(BEAMS, 8, short)
    assert not budget.take(BEAMS, 4, longer)
    budget.resize(BEAMS, 4, short)
    assert budget.take(BEAMS, 4, longer)
    budget.resize(BEAMS, 4, short)  # the long one has left, but the geometry stays
    assert budget.room(BEAMS, short) == (4, 8)
    budget.empty(BEAMS, now=0.0)
    assert budget.room(BEAMS, short) == (16, 16)
    assert budget.take(BEAMS, 4, budget.need(job(500, 500)))
    assert not budget.take(BEAMS, 4, short)


def test_modes_do_not_share_their_pools() -> None:
    budget = PoolBudget(32, 1024, 512)
    need = budget.need(job(20, 50))
    assert all(budget.take(BEAMS, 4, need) for _ in range(4))
    assert [budget.take(GREEDY, 1, budget.need(job(20, 50, GREEDY))) for _ in range(17)] == [True] * 16 + [False]


def test_one_more_mode_waits_until_another_is_empty_and_evicts_the_oldest() -> None:
    budget = PoolBudget(64, 32768, 512)
    modes = [Mode(rows) for rows in range(1, MODES + 2)]
    assert [budget.take(mode, mode.rows, 0) for mode in modes] == [True] * MODES + [False]
    assert budget.evict(now=0.0) == []
    budget.empty(modes[2], now=1.0)
    budget.empty(modes[1], now=2.0)
    assert budget.take(modes[-1], modes[-1].rows, 0)
    assert budget.evict(now=3.0) == [modes[2]]
    assert budget.take(modes[1], 2, 0)  # its pools are there still
    assert budget.evict(now=3.0) == []
    assert not budget.any_empty


def test_a_mode_that_stays_empty_gives_its_pools_back() -> None:
    budget = PoolBudget(64, 32768, 512)
    assert budget.take(GREEDY, 1, 0)
    budget.empty(GREEDY, now=5.0)
    assert budget.next_eviction(now=6.0) == POOLS_IDLE_S - 1.0
    assert budget.evict(now=4.0 + POOLS_IDLE_S) == []
    assert budget.evict(now=5.0 + POOLS_IDLE_S) == [GREEDY]
    assert budget.next_eviction(now=6.0) is None
