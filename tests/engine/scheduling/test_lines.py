"""Callers take turns: in a line, and for the places of a full queue."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmc.artifact import InvalidRequestError
from hmc.artifact.errors import OverloadedError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.caller import Caller, Priority
from hmc.engine.scheduling.lines import FairLine
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.serving import DecodeOptions
from hmc.serving.requests.call import caller_at

A, B, C = Caller("a"), Caller("b"), Caller("c")


def job(length: int = 4, rows: int = 1, *, interactive: bool = True) -> Job:
    return Job([5] * length, DecodeOptions(beam_size=1), Constraints(), Rules(5), Mode(rows, interactive=interactive))


def filled(line: FairLine, caller: Caller, count: int, length: int = 4) -> list[Job]:
    jobs = [job(length) for _ in range(count)]
    line.extend(jobs, caller)
    return jobs


def pop(line: FairLine) -> Job:
    """Takes the next sentence."""
    (found,) = line.take(lambda _: True, 1)
    return found


def starts(line: FairLine, owners: dict[str, list[Job]], count: int) -> list[str]:
    """The callers of the next sentences to start."""
    names = {id(each): name for name, jobs in owners.items() for each in jobs}
    return [names[id(pop(line))] for _ in range(count)]


def test_a_thousand_texts_of_one_caller_do_not_starve_another() -> None:
    line = FairLine()
    owners = {"a": filled(line, A, 1000)}
    assert starts(line, owners, 10) == ["a"] * 10
    owners["b"] = filled(line, B, 5)
    assert Counter(starts(line, owners, 10)) == {"a": 5, "b": 5}
    assert starts(line, owners, 3) == ["a"] * 3


def test_weights_divide_the_starts() -> None:
    line = FairLine()
    owners = {"a": filled(line, Caller("a", 3.0), 100), "b": filled(line, B, 100), "c": filled(line, C, 100)}
    assert Counter(starts(line, owners, 100)) == {"a": 60, "b": 20, "c": 20}


def test_a_new_weight_of_a_caller_holds_for_all_it_has_in_the_line() -> None:
    line = FairLine()
    owners = {"a": filled(line, A, 100), "b": filled(line, B, 100)}
    owners["a"] += filled(line, Caller("a", 3.0), 1)
    assert Counter(starts(line, owners, 80)) == {"a": 60, "b": 20}


def test_long_texts_and_wide_beams_cost_more_turns() -> None:
    line = FairLine()
    owners = {"a": filled(line, A, 100, length=12), "b": filled(line, B, 100, length=4)}
    assert Counter(starts(line, owners, 80)) == {"a": 20, "b": 60}
    wide = FairLine()
    owners = {"a": [job(rows=4) for _ in range(50)], "b": filled(wide, B, 50)}
    wide.extend(owners["a"], A)
    assert Counter(starts(wide, owners, 50)) == {"a": 10, "b": 40}


def test_a_caller_that_sends_one_text_after_the_other_gets_no_more_than_its_turn() -> None:
    """Its clock goes on while it has nothing in the line."""
    line = FairLine()
    owners: dict[str, list[Job]] = {name: filled(line, Caller(name), 100) for name in "bcde"}
    owners["a"] = filled(line, A, 1)
    seen = []
    for _ in range(50):
        seen += starts(line, owners, 1)
        if seen[-1] == "a":
            owners["a"] += filled(line, A, 1)
    assert Counter(seen) == dict.fromkeys("abcde", 10)


def test_a_caller_that_was_away_gets_nothing_for_the_past() -> None:
    line = FairLine()
    owners = {"a": filled(line, A, 200)}
    starts(line, owners, 100)
    owners["b"] = filled(line, B, 100)
    assert Counter(starts(line, owners, 40)) == {"a": 20, "b": 20}


def test_nobody_pays_for_what_was_before_the_line_was_empty() -> None:
    line = FairLine()
    assert starts(line, {"a": filled(line, A, 1, length=400)}, 1) == ["a"]
    owners = {"a": filled(line, A, 10), "b": filled(line, B, 10)}
    assert Counter(starts(line, owners, 4)) == {"a": 2, "b": 2}


def test_a_caller_that_comes_back_is_served_although_new_ones_never_end() -> None:
    line = FairLine()
    owners = {"a": filled(line, A, 2), "b": filled(line, B, 1)}
    seen = []
    for n in range(20):
        owners[str(n)] = filled(line, Caller(str(n)), 1)
        seen += starts(line, owners, 1)
    assert seen.count("a") == 2
    for n in range(20, 1000):
        owners[str(n)] = filled(line, Caller(str(n)), 1)
        starts(line, owners, 1)
    assert len(line._ahead) < 50


@pytest.mark.parametrize(("weight", "rows"), [(0.01, 1), (1.0, 250)])
def test_a_new_caller_does_not_pay_for_what_another_took(weight: float, rows: int) -> None:
    """Another one of little weight, or with one very long text."""
    line = FairLine()
    owners = {"c": [job(rows=rows)]}
    line.extend(owners["c"][:1], Caller("c", weight))
    owners["a"] = filled(line, A, 100)
    assert starts(line, owners, 1) == ["c"]
    owners["b"] = filled(line, B, 100)
    assert Counter(starts(line, owners, 10)) == {"a": 5, "b": 5}


def test_callers_that_have_left_are_forgotten() -> None:
    line = FairLine()
    owners = {"a": filled(line, A, 1000)}
    for n in range(500):
        owners[str(n)] = filled(line, Caller(str(n)), 1)
        starts(line, owners, 2)
    assert line.callers == {"a"}
    assert len(line._ahead) < 50


@given(st.lists(st.tuples(st.sampled_from(["put", "pop", "remove"]), st.integers(0, 3), st.integers(1, 5))))
def test_any_order_of_calls_keeps_every_sentence_once(events: list[tuple[str, int, int]]) -> None:
    """Sentences of one caller keep their order, `first` and iteration say what `take` gives."""
    line, waiting = FairLine(), {n: deque[Job]() for n in range(4)}
    for event, number, length in [*events, *[("pop", 0, 1)] * len(events)]:
        if event == "put":
            waiting[number].append(job(length))
            line.extend([waiting[number][-1]], Caller(str(number), 1.0 + number))
        elif event == "remove" and waiting[number]:
            gone = waiting[number].pop()
            assert line.remove(gone.future)
            assert not line.remove(gone.future)
        elif event == "pop" and len(line):
            expected = [*line]
            assert len(expected) == len(line) == sum(map(len, waiting.values()))
            popped = pop(line)
            assert popped is expected[0]
            assert [*line] == expected[1:]
            owner = next(jobs for jobs in waiting.values() if jobs and jobs[0] is popped)
            owner.popleft()
        assert {name: line.of(name) for name in line.callers} == {str(n): len(j) for n, j in waiting.items() if j}
    assert not len(line)
    assert line.take(lambda _: True, 1) == []


def test_sentences_ahead_are_those_of_the_turns_before() -> None:
    line = FairLine()
    filled(line, A, 100)
    filled(line, B, 2)
    assert (line.ahead(A), line.ahead(B), line.ahead(C)) == (102, 5, 2)
    assert line.ahead(Caller("c", 0.5)) == 4


def test_a_full_queue_has_places_for_those_who_have_less_than_their_part() -> None:
    queue = WaitingQueue(16)
    for _ in range(16):
        queue.put(job(), caller=A)
    with pytest.raises(OverloadedError, match="queue of 16 sentences is full"):
        queue.put(job(), caller=A)
    for _ in range(4):  # the reserve
        queue.put(job(), caller=B)
    for caller in (A, B, C):
        with pytest.raises(OverloadedError):
            queue.put(job(), caller=caller)
    assert len(queue) == 20


def test_the_reserve_is_for_callers_below_their_part_only() -> None:
    queue = WaitingQueue(16)
    for caller in (A, B):
        for _ in range(8):
            queue.put(job(interactive=caller is A), caller=caller)
    with pytest.raises(OverloadedError):
        queue.put(job(), caller=B)
    queue.put(job(), caller=C)
    held = WaitingQueue(4)
    for _ in range(4):
        held.put(Job([5, 0], DecodeOptions(), Constraints(), Rules(5), Mode(1, "sampling")), caller=A)
    with pytest.raises(OverloadedError):
        held.put(job(), caller=A)


def test_half_of_the_queue_is_fair_for_streams_too() -> None:
    queue = WaitingQueue(16)
    for _ in range(8):
        queue.put(job(interactive=False), Priority.BULK, caller=A)
    with pytest.raises(OverloadedError):
        queue.put(job(interactive=False), Priority.BULK, caller=A)
    queue.put(job(interactive=False), Priority.BULK, caller=B)


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:10.0.0.7:53412", "ipv4:10.0.0.7"),
        ("ipv6:%5B::1%5D:5051", "ipv6:%5B::1%5D"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_a_caller_without_a_name_is_its_host(peer: str, name: str) -> None:
    assert caller_at(peer) == Caller(name)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_out_of_range(weight: float) -> None:
    with pytest.raises(InvalidRequestError, match="of caller 'a': choose a number above 0"):
        Caller("a", weight)
