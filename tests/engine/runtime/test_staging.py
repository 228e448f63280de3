"""Sentences that are encoded before they have a slot: where they go, and in how few calls and copies."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.engine.scheduling.fake_search import FakeEncoder

from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.runtime import staging
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.encoder import DeviceEncoder
from hmc.engine.runtime.memory.account import DeviceMemory, LevelMemory, MemoryBudget
from hmc.engine.runtime.memory.blocks import DeviceBlock
from hmc.engine.runtime.memory.views import DeviceArray, bytes_at
from hmc.engine.runtime.staging import POSITIONS, CopyRun, NewSentence, Shape, Staging, copy_runs

CPU = Device("cpu")
SHAPES: dict[str, Shape] = {"cross_key_0": ("tensor(float)", ("B", 1, "S", 1))}
SLOTS = 8


class Setup:
    """A staging area, caches, and the calls of the encoder."""

    def __init__(self) -> None:
        self.memory = LevelMemory(DeviceMemory(CPU), "fake")
        self.session = FakeEncoder()
        encoder: Any = DeviceEncoder(self.session, CPU, 0, 4096)
        self.staging = Staging(SHAPES, encoder, self.memory)
        self.block = DeviceBlock(self.memory, SLOTS * POSITIONS * 4, "caches")
        self.made = 0

    def sentences(self, *lengths: int) -> list[tuple[Future[Any], list[int]]]:
        """Sources that all differ."""
        self.made += 1
        return [(Future(), [1000 * self.made + n] * length) for n, length in enumerate(lengths)]

    def caches(self, room: int) -> dict[str, DeviceArray]:
        return {"cross_key_0": DeviceArray(CPU, "tensor(float)", (SLOTS, 1, room, 1), self.block.address)}

    def fill(
        self,
        new: Sequence[tuple[Future[Any], list[int]]],
        slots: Sequence[int],
        room: int,
        upcoming: Sequence[tuple[Future[Any], list[int]]] = (),
    ) -> None:
        begun = [NewSentence(slot, source, key) for slot, (key, source) in zip(slots, new, strict=True)]
        self.staging.fill(begun, self.caches(room), room, lambda: upcoming)

    def held(self, slot: int, room: int) -> list[int]:
        """What lies in a slot, without the padding."""
        view = self.caches(room)["cross_key_0"].slots(1, slot)
        values: npt.NDArray[Any] = bytes_at(view.address, view.bytes).view(np.float32)
        return [int(value) for value in values if value]


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_sentences_that_follow_share_the_call(setup: Setup) -> None:
    now, later = setup.sentences(3, 5), setup.sentences(*[4] * 10)
    setup.fill(now, [0, 1], 32, later)
    setup.fill(later[:5], [2, 0, 5, 6, 7], 32, later[5:])
    assert len(setup.session.slots) == 1
    assert [setup.held(slot, 32) for slot in (1, 2, 0, 5, 6, 7)] == [now[1][1], *(source for _, source in later[:5])]
    setup.fill(later[5:], [1, 2, 3, 4, 5], 32)
    assert len(setup.session.slots) == 1
    assert [setup.held(slot, 32) for slot in (1, 2, 3, 4, 5)] == [source for _, source in later[5:]]


def test_without_sentences_that_follow_they_go_straight_into_their_slots(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "copy_lines", None)  # nothing is copied
    now = setup.sentences(3, 5)
    setup.fill(now, [4, 6], 32)
    assert [set(slots) for slots in setup.session.slots] == [{4, 6}]
    assert [setup.held(slot, 32) for slot in (4, 6)] == [source for _, source in now]


def test_no_more_are_encoded_than_there_are_places(setup: Setup) -> None:
    assert [setup.staging.capacity(room) for room in (32, 512, POSITIONS, 2 * POSITIONS)] == [POSITIONS // 32, 8, 1, 0]
    now, later = setup.sentences(400, 300), setup.sentences(*[200] * 10)
    setup.fill(now, [0, 1], 512, later)
    assert sum(len(set(slots)) for slots in setup.session.slots) == 8
    many = setup.sentences(*[200] * 8)
    setup.fill(many, range(8), 512, later)  # no place is left beside these
    assert [setup.held(slot, 512) for slot in range(8)] == [source for _, source in many]


def test_what_is_staged_is_copied_before_others_take_its_place(setup: Setup) -> None:
    now, later, last = setup.sentences(3), setup.sentences(4, 4), setup.sentences(6, 6, 6)
    setup.fill(now, [0], 32, later)
    setup.fill([*later, last[0]], [1, 2, 3], 32, last[1:])
    assert len(setup.session.slots) == 2
    assert [setup.held(slot, 32) for slot in range(4)] == [s for _, s in (*now, *later, last[0])]
    setup.fill(last[1:], [4, 5], 32)
    assert len(setup.session.slots) == 2
    assert [setup.held(slot, 32) for slot in (4, 5)] == [source for _, source in last[1:]]


def test_sentences_are_not_encoded_again_while_others_are_staged(setup: Setup) -> None:
    """One that was too long to be staged goes straight into its slot; the others keep their places."""
    now, short, long = setup.sentences(3), setup.sentences(4, 5), setup.sentences(40)
    waiting = [short[0], *long, short[1]]
    setup.fill(now, [0], 32, waiting)
    assert len(set(setup.session.slots[0])) == 3
    setup.fill([short[0], *long], [1, 2], 64, [short[1]])
    assert [set(slots) for slots in setup.session.slots[1:]] == [{2}]
    setup.fill([short[1]], [3], 64)
    assert len(setup.session.slots) == 2
    assert [setup.held(slot, 64)[:4] for slot in (1, 2)] == [short[0][1], long[0][1][:4]]


@pytest.mark.parametrize("room", [32, 64, 128])
def test_rooms_of_places_and_slots_may_differ(setup: Setup, room: int) -> None:
    now, later = setup.sentences(50), setup.sentences(20, 30)
    setup.fill(now, [0], 64, later)
    setup.fill(later, [3, 1], room)
    assert len(setup.session.slots) == 1
    assert [setup.held(slot, room)[: len(source)] for slot, (_, source) in zip((3, 1), later, strict=True)] == [
        source for _, source in later
    ]


def test_cancelled_sentences_make_room(setup: Setup) -> None:
    now, later, more = setup.sentences(3), setup.sentences(4, 4), setup.sentences(5, 5)
    setup.fill(now, [0], 32, later)
    later[0][0].cancel()
    setup.fill(more[:1], [1], 32, more[1:])
    assert len(set(setup.session.slots[-1])) == 1  # one is staged still
    later[1][0].cancel()
    setup.fill(more[1:], [2], 32, setup.sentences(7))
    assert len(set(setup.session.slots[-1])) == 2
    assert [setup.held(slot, 32) for slot in (1, 2)] == [source for _, source in more]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_shorter_sentence_in_the_place_of_a_failed_one_gets_nothing_of_it(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """The encoder's output of a sentence is NaN, whether it got a slot and failed or was cancelled before. The encoder
    writes as many positions as its longest sentence has."""

    def only_what_is_encoded(binding: Any) -> None:
        a = binding.arrays
        for slot, source in zip(a["slots"][:, 0], a["source"], strict=True):
            a["cross_key_0"][slot, 0, : len(source), 0] = np.where(source == NAN, np.nan, source)

    NAN = 7777
    monkeypatch.setattr(setup.session, "run_with_iobinding", only_what_is_encoded)
    now, short = setup.sentences(3), setup.sentences(3, 3)
    broken: tuple[Future[Any], list[int]] = (Future(), [NAN] * 120)
    setup.fill(now, [0], 128, [broken])
    if cancelled:
        broken[0].cancel()
    else:
        setup.fill([broken], [1], 128)
        view = setup.caches(128)["cross_key_0"].slots(1, 1)
        bytes_at(view.address, view.bytes)[:] = 0  # as `Pools.clean` does
        setup.staging.clean()
    setup.fill(short[:1], [2], 128, short[1:])
    setup.fill(short[1:], [3], 128)
    for slot, (_, source) in zip((2, 3), short, strict=True):
        view = setup.caches(128)["cross_key_0"].slots(1, slot)
        values: npt.NDArray[Any] = bytes_at(view.address, view.bytes).view(np.float32)
        assert values[:3].tolist() == source
        assert np.isfinite(values).all()


def test_its_memory_is_accounted_for_and_given_back(setup: Setup) -> None:
    with_caches = setup.memory.reserved
    assert with_caches >= setup.block.size + POSITIONS * 4
    setup.staging.close()
    assert setup.memory.reserved == setup.block.size
    poor = DeviceMemory(CPU, 1 << 20)
    poor.limit(MemoryBudget(1000))
    with pytest.raises(FailedPreconditionError, match="sentences encoded ahead of level fake"):
        Staging(SHAPES, DeviceEncoder(None, CPU, 0, 4096), LevelMemory(poor, "fake"))


def test_a_level_without_cross_heads_has_nothing_to_stage() -> None:
    memory = LevelMemory(DeviceMemory(CPU), "fake")
    area = Staging({"past_key_0": ("tensor(float)", ("B", 1, "N", 1))}, DeviceEncoder(None, CPU, 0, 4096), memory)
    assert memory.reserved == 0
    area.fill([NewSentence(0, [5, 1], Future())], {}, 32, lambda: [(Future(), [4, 1])])


def view(address: int, slots: int, heads: int, room: int) -> DeviceArray:
    return DeviceArray(CPU, "tensor(float)", (slots, heads, room, 2), address)


def test_caches_of_one_size_and_distance_are_one_copy() -> None:
    sizes = {"a": 2, "b": 2, "c": 2, "d": 3, "e": 3}
    staged = {name: view(1000 * n, 4, heads, 8) for n, (name, heads) in enumerate(sizes.items())}
    caches = {name: view(50_000 + 3000 * n, 9, heads, 8) for n, (name, heads) in enumerate(sizes.items())}
    assert copy_runs(staged, caches) == [
        CopyRun(0, 50_000, (128, 128), (3000, 1000), 3, 128),
        CopyRun(3000, 59_000, (192, 192), (3000, 1000), 2, 192),
    ]
    caches["c"] = view(90_000, 9, 2, 8)
    assert [run.lines for run in copy_runs(staged, caches)] == [2, 1, 2]


def test_caches_of_another_room_are_copied_head_by_head() -> None:
    (run,) = copy_runs({"a": view(0, 4, 3, 8)}, {"a": view(5000, 9, 3, 16)})
    assert run == CopyRun(0, 5000, (192, 384), (128, 64), 3, 64)
