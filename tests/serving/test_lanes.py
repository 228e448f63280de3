"""In which order sentences that wait for rows get them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.fakes import eventually

from hmc.artifact.bundle import read_manifest
from hmc.serving import batch
from hmc.serving.constraints import Constraints
from hmc.serving.engine import Engine
from hmc.serving.jobs import Job, Mode
from hmc.serving.lanes import Lanes, TimeShares
from hmc.serving.options import DecodeOptions
from hmc.serving.results import Decoded
from hmc.serving.sessions import Device, LevelSessions
from hmc.serving.state import Rules

SOURCE = [5, 9, 40, 7, 0]
LONG = DecodeOptions(beam_size=1, min_length=60, max_length=60)
SHORT = DecodeOptions(beam_size=1, max_length=2)
BEAM = DecodeOptions(beam_size=4, max_length=12)


def job(patient: bool) -> Job:
    return Job(SOURCE, SHORT, Constraints(), Rules(5), Mode(1, patient=patient))


@given(st.lists(st.sampled_from(["hurried", "patient", "take"])))
def test_each_lane_keeps_its_order_and_the_patient_one_its_quarter(events: list[str]) -> None:
    lanes = Lanes()
    waiting: dict[str, list[Job]] = {"hurried": [], "patient": []}
    passed = 0
    for event in [*events, *["take"] * len(events)]:
        if event != "take":
            waiting[event].append(job(event == "patient"))
            lanes.add(waiting[event][-1])
        elif len(lanes):
            expected = "patient" if not waiting["hurried"] or (waiting["patient"] and passed == 3) else "hurried"
            passed = passed + 1 if expected == "hurried" and waiting["patient"] else 0
            first = lanes.first()
            assert lanes.take() is first is waiting[expected].pop(0)
        assert len(lanes) == sum(map(len, waiting.values()))
        assert lanes.hurried == len(waiting["hurried"])
        assert list(lanes) == [*waiting["hurried"], *waiting["patient"]]


def test_who_leaves_early_is_waited_for_no_more() -> None:
    lanes, jobs = Lanes(), [job(index % 2 == 1) for index in range(4)]
    for each in jobs:
        lanes.add(each)
    assert lanes.remove(jobs[0].future)
    assert lanes.remove(jobs[1].future)
    assert not lanes.remove(jobs[1].future)
    assert [lanes.take(), lanes.take()] == jobs[2:]
    assert not len(lanes)


PATIENT, HURRIED, OTHER = Mode(4, patient=True), Mode(4), Mode(1, "greedy")


def test_both_kinds_have_about_the_same_time() -> None:
    shares, spent = TimeShares(), {True: 0.0, False: 0.0}
    seconds = {PATIENT: 0.025, HURRIED: 0.002, OTHER: 0.001}
    longest = 0.0
    for _ in range(500):
        chosen = shares.choose([HURRIED, PATIENT, OTHER])
        assert chosen in ([HURRIED, OTHER], [PATIENT])
        took = sum(seconds[mode] for mode in chosen)
        shares.count(chosen, took)
        spent[chosen == [PATIENT]] += took
        longest = max(longest, abs(spent[True] - spent[False]))
    assert longest <= 0.025 + 0.003


@pytest.mark.parametrize("active", [[PATIENT], [HURRIED, OTHER], []])
def test_one_kind_alone_need_not_share(active: list[Mode]) -> None:
    shares = TimeShares()
    for _ in range(3):
        assert shares.choose(active) == active
        shares.count(active, 1.0)


def test_who_joins_owes_nothing_for_what_went_before() -> None:
    shares = TimeShares()
    for alone, other in ((HURRIED, PATIENT), (PATIENT, HURRIED)):
        for _ in range(10):
            shares.count(shares.choose([alone]), 1.0)
        assert shares.choose([HURRIED, PATIENT]) == [other]
        shares.count([other], 1.25)
        assert shares.choose([HURRIED, PATIENT]) == [alone]


Opened = Callable[[int], Engine]


@pytest.fixture
def opened(lively_bundle: Path) -> Iterator[Opened]:
    """Engines of a level with so many rows."""
    engines = []

    def make(max_rows: int) -> Engine:
        manifest = read_manifest(lively_bundle)
        level = manifest.level("h12-int8")
        sessions = LevelSessions.open(lively_bundle, manifest.architecture, level, Device("cpu"), 1)
        engines.append(Engine(sessions, queue_size=100, max_rows=max_rows))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close(drain=False)


@pytest.mark.parametrize("bulk", [False, True])
def test_who_is_in_a_hurry_passes(opened: Opened, monkeypatch: pytest.MonkeyPatch, bulk: bool) -> None:
    go_on, order, admit = threading.Event(), list[int](), batch.Batch.admit

    def noted(self: batch.Batch, jobs: Any) -> None:
        order.extend(len(each.source) for each in jobs)
        admit(self, jobs)
        go_on.wait(30)

    monkeypatch.setattr(batch.Batch, "admit", noted)
    engine = opened(4)
    engine.submit(SOURCE, BEAM)
    eventually(lambda: not engine.queue)
    patient = [engine.submit([*[9] * (20 + n), 0], BEAM, patient=not bulk, bulk=bulk) for n in range(3)]
    hurried = [engine.submit([*[9] * (40 + n), 0], BEAM) for n in range(5)]
    assert (engine.pending, engine.hurried) == (9, 6)
    go_on.set()
    for future in (*patient, *hurried):
        assert future.result(timeout=60).hypotheses
    assert order == [5, 41, 42, 43, 21, 44, 45, 22, 23]


def test_the_hurried_wait_for_no_more_rows_than_they_need(opened: Opened) -> None:
    engine, ended = opened(8), list[str]()

    def submit(name: str, options: DecodeOptions, *, patient: bool = False) -> Future[Decoded]:
        future = engine.submit(SOURCE, options, patient=patient)
        future.add_done_callback(lambda _: ended.append(name))
        return future

    running = [submit("running", LONG) for _ in range(7)]
    eventually(lambda: not engine.queue)
    patient = [submit("patient", SHORT, patient=True) for _ in range(3)]
    hurried = submit("hurried", SHORT)
    for future in (hurried, *running, *patient):
        assert future.result(timeout=60).hypotheses
    assert ended[0] == "hurried"


def test_both_kinds_together_find_what_each_finds_alone(opened: Opened) -> None:
    engine = opened(24)
    asked = [([5 + n, 9, 40 + n, 7, 0], options) for n in range(12) for options in (BEAM, LONG)]
    expected = [engine.submit(source, options).result(timeout=60).hypotheses for source, options in asked]
    futures = [engine.submit(*each, patient=index % 3 > 0) for index, each in enumerate(asked)]
    assert [future.result(timeout=60).hypotheses for future in futures] == expected
