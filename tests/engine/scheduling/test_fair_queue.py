"""Callers take turns: in a queue, and for the places of a full queue."""

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
from hmc.engine.scheduling.fair_queue import FairQueue
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.serving import DecodeOptions
from hmc.serving.requests.call import caller_at

A, B, C = Caller("a"), Caller("b"), Caller("c")


def job(length: int = 4, rows: int = 1, *, interactive: bool = True) -> Job:
    return Job([5] * length, DecodeOptions(beam_size=1), Constraints(), Rules(5), Mode(rows, interactive=interactive))


def filled(queue: FairQueue, caller: Caller, count: int, length: int = 4) -> list[Job]:
    jobs = [job(length) for _ in range(count)]
    queue.extend(jobs, caller)
    return jobs


def pop(queue: FairQueue) -> Job:
    """Takes the next sentence."""
    (found,) = queue.take(lambda _: True, 1)
    return found


def starts(queue: FairQueue, owners: dict[str, list[Job]], count: int) -> list[str]:
    """The callers of the next sentences to start."""
    names = {id(each): name for name, jobs in owners.items() for each in jobs}
    return [names[id(pop(queue))] for _ in range(count)]


def test_a_thousand_texts_of_one_caller_do_not_starve_another() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, A, 1000)}
    assert starts(queue, owners, 10) == ["a"] * 10
    owners["b"] = filled(queue, B, 5)
    assert Counter(starts(queue, owners, 10)) == {"a": 5, "b": 5}
    assert starts(queue, owners, 3) == ["a"] * 3


def test_weights_divide_the_starts() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, Caller("a", 3.0), 100), "b": filled(queue, B, 100), "c": filled(queue, C, 100)}
    assert Counter(starts(queue, owners, 100)) == {"a": 60, "b": 20, "c": 20}


def test_a_new_weight_of_a_caller_holds_for_all_it_has_in_the_line() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, A, 100), "b": filled(queue, B, 100)}
    owners["a"] += filled(queue, Caller("a", 3.0), 1)
    assert Counter(starts(queue, owners, 80)) == {"a": 60, "b": 20}


def test_long_texts_and_wide_beams_cost_more_turns() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, A, 100, length=12), "b": filled(queue, B, 100, length=4)}
    assert Counter(starts(queue, owners, 80)) == {"a": 20, "b": 60}
    wide = FairQueue()
    owners = {"a": [job(rows=4) for _ in range(50)], "b": filled(wide, B, 50)}
    wide.extend(owners["a"], A)
    assert Counter(starts(wide, owners, 50)) == {"a": 10, "b": 40}


def test_a_caller_that_sends_one_text_after_the_other_gets_no_more_than_its_turn() -> None:
    """Its clock goes on while it has nothing in the queue."""
    queue = FairQueue()
    owners: dict[str, list[Job]] = {name: filled(queue, Caller(name), 100) for name in "bcde"}
    owners["a"] = filled(queue, A, 1)
    seen = []
    for _ in range(50):
        seen += starts(queue, owners, 1)
        if seen[-1] == "a":
            owners["a"] += filled(queue, A, 1)
    assert Counter(seen) == dict.fromkeys("abcde", 10)


def test_a_caller_that_was_away_gets_nothing_for_the_past() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, A, 200)}
    starts(queue, owners, 100)
    owners["b"] = filled(queue, B, 100)
    assert Counter(starts(queue, owners, 40)) == {"a": 20, "b": 20}


def test_nobody_pays_for_what_was_before_the_line_was_empty() -> None:
    queue = FairQueue()
    assert starts(queue, {"a": filled(queue, A, 1, length=400)}, 1) == ["a"]
    owners = {"a": filled(queue, A, 10), "b": filled(queue, B, 10)}
    assert Counter(starts(queue, owners, 4)) == {"a": 2, "b": 2}


def test_a_caller_that_comes_back_is_served_although_new_ones_never_end() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, A, 2), "b": filled(queue, B, 1)}
    seen = []
    for n in range(20):
        owners[str(n)] = filled(queue, Caller(str(n)), 1)
        seen += starts(queue, owners, 1)
    assert seen.count("a") == 2
    for n in range(20, 1000):
        owners[str(n)] = filled(queue, Caller(str(n)), 1)
        starts(queue, owners, 1)
    assert len(queue._ahead) < 50


@pytest.mark.parametrize(("weight", "rows"), [(0.01, 1), (1.0, 250)])
def test_a_new_caller_does_not_pay_for_what_another_took(weight: float, rows: int) -> None:
    """Another one of little weight, or with one very long text."""
    queue = FairQueue()
    owners = {"c": [job(rows=rows)]}
    queue.extend(owners["c"][:1], Caller("c", weight))
    owners["a"] = filled(queue, A, 100)
    assert starts(queue, owners, 1) == ["c"]
    owners["b"] = filled(queue, B, 100)
    assert Counter(starts(queue, owners, 10)) == {"a": 5, "b": 5}


def test_callers_that_have_left_are_forgotten() -> None:
    queue = FairQueue()
    owners = {"a": filled(queue, A, 1000)}
    for n in range(500):
        owners[str(n)] = filled(queue, Caller(str(n)), 1)
        starts(queue, owners, 2)
    assert queue.callers == {"a"}
    assert len(queue._ahead) < 50


@given(st.lists(st.tuples(st.sampled_from(["put", "pop", "remove"]), st.integers(0, 3), st.integers(1, 5))))
def test_any_order_of_calls_keeps_every_sentence_once(events: list[tuple[str, int, int]]) -> None:
    """Sentences of one caller keep their order, `first` and iteration say what `take` gives."""
    queue, waiting = FairQueue(), {n: deque[Job]() for n in range(4)}
    for event, number, length in [*events, *[("pop", 0, 1)] * len(events)]:
        if event == "put":
            waiting[number].append(job(length))
            queue.extend([waiting[number][-1]], Caller(str(number), 1.0 + number))
        elif event == "remove" and waiting[number]:
            gone = waiting[number].pop()
            assert queue.remove(gone.future)
            assert not queue.remove(gone.future)
        elif event == "pop" and len(queue):
            expected = [*queue]
            assert len(expected) == len(queue) == sum(map(len, waiting.values()))
            popped = pop(queue)
            assert popped is expected[0]
            assert [*queue] == expected[1:]
            owner = next(jobs for jobs in waiting.values() if jobs and jobs[0] is popped)
            owner.popleft()
        assert {name: queue.waiting(name) for name in queue.callers} == {
            str(n): len(j) for n, j in waiting.items() if j
        }
    assert not len(queue)
    assert queue.take(lambda _: True, 1) == []


def test_sentences_ahead_are_those_of_the_turns_before() -> None:
    queue = FairQueue()
    filled(queue, A, 100)
    filled(queue, B, 2)
    assert (queue.ahead(A), queue.ahead(B), queue.ahead(C)) == (102, 5, 2)
    assert queue.ahead(Caller("c", 0.5)) == 4


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
