"""The order in which waiting sentences start."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.fakes import GUARD_S, eventually
from tests.serving.held_steps import HeldSteps

from hmc.artifact import read_manifest
from hmc.artifact.errors import OverloadedError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.results import Decoded
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling import batch
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.serving import DecodeOptions

SOURCE = [5, 9, 40, 7, 0]
LONG = DecodeOptions(beam_size=1, min_length=60, max_length=60)
SHORT = DecodeOptions(beam_size=1, max_length=2)
BEAM = DecodeOptions(beam_size=4, max_length=12)


def job(interactive: bool) -> Job:
    return Job(SOURCE, SHORT, Constraints(), Rules(5), Mode(1, interactive=interactive))


def take_one(queue: WaitingQueue) -> Job:
    """Takes the sentence that starts next."""
    answers = iter((True, False))
    (found,) = queue.take(lambda _: next(answers))
    return found


@given(st.lists(st.sampled_from(["interactive", "other", "take"])))
def test_each_line_keeps_its_order_and_every_fourth_start_is_of_the_other_line(events: list[str]) -> None:
    queue = WaitingQueue(1000)
    waiting: dict[str, list[Job]] = {"interactive": [], "other": []}
    passed = 0
    for event in [*events, *["take"] * len(events)]:
        if event != "take":
            waiting[event].append(job(event == "interactive"))
            queue.put(waiting[event][-1])
        elif len(queue):
            other = not waiting["interactive"] or (waiting["other"] and passed == 3)
            expected = "other" if other else "interactive"
            passed = passed + 1 if expected == "interactive" and waiting["other"] else 0
            first = queue.first()
            assert take_one(queue) is first is waiting[expected].pop(0)
        assert queue.ready == len(queue) == sum(map(len, waiting.values()))
        assert queue.interactive == queue.waiting_interactive == len(waiting["interactive"])
        assert list(queue) == [*waiting["interactive"], *waiting["other"]]


def test_a_sentence_that_is_removed_is_not_taken() -> None:
    queue, jobs = WaitingQueue(4), [job(index % 2 == 0) for index in range(4)]
    for each in jobs:
        queue.put(each)
    assert queue.remove(jobs[0].future)
    assert queue.remove(jobs[1].future)
    assert not queue.remove(jobs[1].future)
    assert queue.take(lambda _: True) == jobs[2:]
    assert not len(queue)


def test_sentences_that_come_next_can_be_seen_and_go_on_waiting() -> None:
    """Those of one mode, in their line, among its first."""
    queue, jobs = WaitingQueue(20), [job(index % 2 == 0) for index in range(8)]
    jobs[4].mode = Mode(4)
    for each in jobs:
        queue.put(each)
    assert queue.upcoming(Mode(1), 3) == [jobs[0], jobs[2]]
    assert queue.upcoming(Mode(1), 9) == [jobs[0], jobs[2], jobs[6]]
    assert queue.upcoming(Mode(4), 9) == [jobs[4]]
    assert queue.upcoming(Mode(1, interactive=False), 2) == [jobs[1], jobs[3]]
    assert list(queue) == [*jobs[::2], *jobs[1::2]]


@pytest.mark.parametrize(("priority", "most"), [(Priority.INTERACTIVE, 5), (Priority.STANDARD, 5), (Priority.BULK, 3)])
def test_the_queue_is_full_for_bulk_at_half_of_its_size(priority: Priority, most: int) -> None:
    queue = WaitingQueue(5)
    for _ in range(most):
        queue.put(job(priority.interactive), priority)
    with pytest.raises(OverloadedError, match="queue of 5 sentences is full"):
        queue.put(job(priority.interactive), priority)


def test_sentences_whose_graph_is_not_open_are_held_and_passed() -> None:
    queue = WaitingQueue(3)
    held = [Job(SOURCE, SHORT, Constraints(), Rules(5), Mode(1, variant)) for variant in ("sampling", "attention")]
    assert [queue.put(each) for each in held] == [False, False]
    assert queue.put(passing := job(interactive=True))
    with pytest.raises(OverloadedError):
        queue.put(job(interactive=True))
    assert (len(queue), queue.ready, queue.waiting_interactive) == (3, 1, 3)
    assert queue.take(lambda _: True) == [passing]
    queue.open_variant("sampling")
    assert queue.ready == 1
    assert queue.take(lambda _: True) == held[:1]
    assert queue.put(Job(SOURCE, SHORT, Constraints(), Rules(5), Mode(1, "sampling")))
    assert queue.remove(held[1].future)
    assert queue.take_waiting_for_graph("attention") == []


Opened = Callable[[int], Engine]


@pytest.fixture
def opened(lively_bundle: Path) -> Iterator[Opened]:
    """Makes engines with a given number of rows."""
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


@pytest.mark.parametrize("priority", [Priority.STANDARD, Priority.BULK])
def test_interactive_sentences_pass(opened: Opened, monkeypatch: pytest.MonkeyPatch, priority: Priority) -> None:
    go_on, order, admit = threading.Event(), list[int](), batch.HostBatch.admit

    def noted(self: batch.HostBatch, jobs: Any, upcoming: Any) -> None:
        order.extend(len(each.source) for each in jobs)
        admit(self, jobs, upcoming)
        go_on.wait(GUARD_S)

    monkeypatch.setattr(batch.HostBatch, "admit", noted)
    engine = opened(4)
    engine.submit(SOURCE, BEAM)
    eventually(lambda: not len(engine.queue))
    others = [engine.submit([*[9] * (20 + n), 0], BEAM, priority=priority) for n in range(3)]
    interactive = [engine.submit([*[9] * (40 + n), 0], BEAM) for n in range(5)]
    assert (engine.pending, engine.pending_interactive) == (9, 6)
    go_on.set()
    for future in (*others, *interactive):
        assert future.result(timeout=GUARD_S).hypotheses
    assert order == [5, 41, 42, 43, 21, 44, 45, 22, 23]


def test_interactive_sentences_wait_for_no_more_rows_than_they_need(opened: Opened, steps: HeldSteps) -> None:
    engine, ended = opened(8), list[str]()

    def submit(name: str, options: DecodeOptions, priority: Priority = Priority.INTERACTIVE) -> Future[Decoded]:
        future = engine.submit(SOURCE, options, priority=priority)
        future.add_done_callback(lambda _: ended.append(name))
        return future

    steps.hold()
    with engine.queue.changed:  # the worker sees all of them at once
        running = [submit("running", LONG) for _ in range(7)]
    steps.wait()
    others = [submit("other", SHORT, Priority.STANDARD) for _ in range(3)]
    interactive = submit("interactive", SHORT)
    steps.release()
    for future in (interactive, *running, *others):
        assert future.result(timeout=GUARD_S).hypotheses
    assert ended[0] == "interactive"


def test_both_kinds_together_find_what_each_finds_alone(opened: Opened) -> None:
    engine = opened(24)
    asked = [([5 + n, 9, 40 + n, 7, 0], options) for n in range(12) for options in (BEAM, LONG)]
    expected = [engine.submit(source, options).result(timeout=GUARD_S).hypotheses for source, options in asked]
    priorities = (Priority.INTERACTIVE, Priority.STANDARD, Priority.BULK)
    futures = [engine.submit(*each, priority=priorities[index % 3]) for index, each in enumerate(asked)]
    assert [future.result(timeout=GUARD_S).hypotheses for future in futures] == expected
