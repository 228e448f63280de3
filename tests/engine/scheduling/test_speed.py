"""What a level's measured speed says about waiting and about deadlines."""

from __future__ import annotations

import pytest
from tests.serving.fakes import FakeClock

from hmc.artifact.errors import DeadlineExceededError, OverloadedError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.caller import Caller
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.engine.scheduling.scheduler import Scheduler
from hmc.engine.scheduling.speed import FIRST_RETRY_S, KEPT_S, LONGEST_RETRY_S, DrainRate, Pace, retry_after_s
from hmc.serving import DecodeOptions


def job(limit: int = 40, *, interactive: bool = True) -> Job:
    return Job([5] * 10, DecodeOptions(beam_size=1), Constraints(), Rules(limit), Mode(1, interactive=interactive))


def busy_queue(
    clock: FakeClock, waiting: int, *, per_look: int = 4, looks: int = 10, every_s: float = 0.1
) -> WaitingQueue:
    """A queue of 1 000 places in which `waiting` sentences are left, after a worker of four rows has taken four
    sentences every 0.1 seconds, each of which took 0.1 seconds."""
    queue = WaitingQueue(1000, clock)
    scheduler = Scheduler(queue, [], max_rows=per_look, max_tokens=10_000, clock=clock)
    for _ in range(waiting + per_look * looks):
        queue.put(job())
    for _ in range(looks):
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.begin_step()
        clock.now += every_s
        queue.ended([(10, 20, every_s)] * per_look, interactive=True)
        scheduler.end_step([each for jobs in plan.started.values() for each in jobs])
    assert len(queue) == waiting
    return queue


def test_the_drain_of_a_queue_is_measured_while_sentences_stay_behind() -> None:
    clock = FakeClock()
    assert busy_queue(clock, 100).speed.per_second(clock.now) == pytest.approx(40, rel=0.05)


def test_a_line_that_a_worker_empties_says_nothing() -> None:
    rate, now = DrainRate(), 0.0
    for _ in range(100):
        rate.looked(now, 1, 0, idle=False)
        now += 0.1
    assert rate.per_second(now) is None
    for _ in range(10):
        rate.looked(now, 2, 5, idle=True)
        now += 0.1
    assert rate.per_second(now) is None, "a worker that was idle measures nothing"


def test_time_without_sentences_is_no_waiting() -> None:
    clock = FakeClock()
    queue = busy_queue(clock, 1)
    queue.remove(next(iter(queue)).future)
    clock.now += 20.0
    queue.put(job())
    queue.looked(1, 0, idle=False)
    assert queue.speed.rates[True].per_second(clock.now) == pytest.approx(40, rel=0.05)


def test_measurements_fade_and_end() -> None:
    rate, pace = DrainRate(), Pace()
    for step in range(100):
        rate.looked(step * 0.1, 10, 5, idle=False)
    for step in range(100, 400):
        rate.looked(step * 0.1, 1, 5, idle=False)
    assert rate.per_second(40.0) == pytest.approx(10, rel=0.05)
    assert rate.per_second(39.9 + KEPT_S + 1) is None
    pace.ended(0.0, [(10, 20, 2.0)] * 500)
    pace.ended(1.0, [(10, 20, 0.2)] * 500)
    assert pace.seconds(1.0, 10, 999) == pytest.approx(0.2, rel=0.05)
    assert pace.seconds(1.0, 10, 10) == pytest.approx(0.1, rel=0.05)
    assert pace.seconds(1.0, 30, 999) == pytest.approx(0.6, rel=0.05)
    assert pace.seconds(2.0 + KEPT_S, 10, 999) is None


def test_what_was_measured_long_ago_does_not_count_again_beside_a_new_sentence() -> None:
    """A level that was left in a rush and is tried again a minute later is not as slow as in the rush."""
    rate, pace, later = DrainRate(), Pace(), 60.0 + KEPT_S
    for step in range(100):
        rate.looked(step * 0.1, 1, 50, idle=False)
        pace.ended(step * 0.1, [(10, 20, 9.0)])
    pace.ended(later, [(10, 20, 0.1)])
    assert pace.seconds(later, 10, 999) is None, "one sentence is too little"
    pace.ended(later, [(10, 20, 0.1)] * 4)
    assert pace.seconds(later, 10, 999) == pytest.approx(0.1)
    rate.restart()
    for step in range(10):
        rate.looked(later + step * 0.1, 10, 50, idle=False)
    assert rate.per_second(later + 1.0) == pytest.approx(100, rel=0.05)


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    """100 sentences wait, 40 start in a second: a new one waits 2.5 seconds and takes 0.1."""
    clock = FakeClock()
    queue = busy_queue(clock, 100)
    with pytest.raises(DeadlineExceededError, match=r"2 s are left, and this level needs about 2\.6") as refused:
        queue.put(job(), within_s=2.0)
    assert refused.value.retry_after_s == -1.0
    assert len(queue) == 100
    queue.put(job(), within_s=3.0)
    queue.put(job(), within_s=1.0, caller=Caller("other"))  # its turn comes soon
    queue.put(job(interactive=False), within_s=0.001)  # nothing is known of these
    queue.put(job())


def test_nothing_is_refused_before_it_was_measured_or_long_after() -> None:
    clock = FakeClock()
    queue = WaitingQueue(1000, clock)
    for _ in range(50):
        queue.put(job(), within_s=0.001)
    queue = busy_queue(clock, 100)
    clock.now += KEPT_S + 1
    queue.put(job(), within_s=0.001)


def test_what_a_text_takes_now() -> None:
    clock = FakeClock()
    queue = busy_queue(clock, 100)
    assert queue.expected_s(interactive=True) == pytest.approx(2.6, rel=0.05)
    assert queue.expected_s(interactive=False) is None


def test_a_full_queue_says_when_it_has_room() -> None:
    clock = FakeClock()
    queue = busy_queue(clock, 1000 - 40)
    for _ in range(40):
        queue.put(job())
    with pytest.raises(OverloadedError) as refused:
        queue.put(job())
    assert refused.value.retry_after_s == pytest.approx(62 / 40, rel=0.05)
    unmeasured = WaitingQueue(1)
    unmeasured.put(job())
    with pytest.raises(OverloadedError) as refused:
        unmeasured.put(job())
    assert refused.value.retry_after_s == FIRST_RETRY_S
    assert retry_after_s(1000, 0.01) == LONGEST_RETRY_S
