"""The account of a device: its budget, what is reserved, what is refused and how, and what comes back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.memory.account import (
    DEFAULT_BUDGET,
    DeviceMemory,
    LevelMemory,
    MemoryBudget,
    memory_of,
    parse_budget,
)

MIB = 2**20


class SmallDevice(DeviceMemory):
    """A device on which 100 MiB were free at the start, and on which other processes use `taken` bytes."""

    taken = 0

    def __init__(self) -> None:
        super().__init__(Device("cuda", 3), 100 * MIB)

    def free_now(self) -> int:
        return 100 * MIB - self.reserved - self.taken


def test_reservations_add_up_and_come_back_once() -> None:
    memory = SmallDevice()
    first, second = memory.reserve(30 * MIB, "weights"), memory.reserve(20 * MIB, "caches")
    assert memory.reserved == 50 * MIB
    first.release()
    first.release()
    assert memory.reserved == 20 * MIB
    second.release()
    assert memory.reserved == 0


def test_more_than_the_budget_is_refused_with_the_numbers() -> None:
    memory = SmallDevice()
    memory.reserve(50 * MIB, "weights")
    message = (
        r"cuda:3 has too little memory for caches of level h36: needed 40\.0 MiB, free on the device 50\.0 MiB, budget "
        r"80\.0 MiB, of which 50\.0 MiB are in use\. Load fewer levels, lower max_tokens or max_rows, raise gpu_memory"
    )
    with pytest.raises(FailedPreconditionError, match=message):
        memory.reserve(40 * MIB, "caches of level h36")
    assert memory.reserved == 50 * MIB
    memory.limit(MemoryBudget(share=0.9))
    assert memory.reserve(40 * MIB, "caches of level h36").size == 40 * MIB


def test_what_other_processes_took_is_refused() -> None:
    memory = SmallDevice()
    memory.taken = 90 * MIB
    with pytest.raises(FailedPreconditionError, match=r"free on the device 10\.0 MiB, budget 80\.0 MiB"):
        memory.reserve(20 * MIB, "weights")


def test_a_check_reserves_nothing() -> None:
    memory = SmallDevice()
    memory.check(80 * MIB, "weights")
    assert memory.reserved == 0
    with pytest.raises(FailedPreconditionError, match="too little memory for weights"):
        memory.check(81 * MIB, "weights")


def test_a_level_knows_its_own_part() -> None:
    memory = SmallDevice()
    levels = [LevelMemory(memory, name) for name in ("full", "h36")]
    taken = [level.reserve(10 * MIB, "caches") for level in levels for _ in range(2)]
    assert [level.reserved for level in levels] == [20 * MIB, 20 * MIB]
    taken[0].release()
    taken[0].release()
    assert ([level.reserved for level in levels], memory.reserved) == ([10 * MIB, 20 * MIB], 30 * MIB)
    with pytest.raises(FailedPreconditionError, match="for caches of level h36"):
        levels[1].reserve(70 * MIB, "caches")
    assert levels[1].reserved == 20 * MIB


def test_threads_never_exceed_the_budget_together() -> None:
    memory = SmallDevice()

    def attempt(_: int) -> bool:
        try:
            memory.reserve(MIB, "caches")
        except FailedPreconditionError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(200))) == 80
    assert memory.reserved == 80 * MIB


def test_this_machines_memory_has_no_limit_unless_one_is_given() -> None:
    host = DeviceMemory(Device("cpu"))
    assert host.budget is None
    host.reserve(2**50, "anything").release()
    host.limit(MemoryBudget(1000))
    with pytest.raises(FailedPreconditionError, match=r"free on the device unknown, budget 0\.0 MiB"):
        host.reserve(1001, "anything")
    assert memory_of(Device("cpu")) is memory_of(Device("cpu"))


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8GiB", MemoryBudget(8 * 2**30)),
        ("500MB", MemoryBudget(500_000_000)),
        ("1.5 gib", MemoryBudget(3 * 2**29)),
        ("123456", MemoryBudget(123456)),
        ("1000B", MemoryBudget(1000)),
        ("80%", MemoryBudget(share=0.8)),
        (" 12.5 % ", MemoryBudget(share=0.125)),
        ("100%", MemoryBudget(share=1.0)),
    ],
)
def test_what_can_be_written_as_a_budget(text: str, budget: MemoryBudget) -> None:
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "8 Gb/s", "GiB", "80 percent", "1e9", "0.5", "5GG"])
def test_what_is_refused_as_a_budget(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="write bytes such as 8GiB, 500MB or 1000000000, or a share"):
        parse_budget(text)


def test_a_share_is_of_the_free_memory() -> None:
    assert MemoryBudget(share=0.25).bytes_of(1000) == 250
    assert DEFAULT_BUDGET.bytes_of(1000) == 800
    assert MemoryBudget(share=0.25).bytes_of(None) is None
    assert MemoryBudget(77).bytes_of(None) == 77
