"""The simulated server against what queueing theory says."""

from __future__ import annotations

import numpy as np
import pytest
from experiments.load.capacity.simulation import Costs, Machine, Simulation, answered_per_second, at, latencies

from hmc.benchmark.load.arrivals import poisson

FREE = Costs(step=((1, 0.0),), encode=((1, 0.0),), call_s=0.0, caller_s=0.0)


def test_one_sentence_at_a_time_waits_as_long_as_in_a_queue_of_constant_service() -> None:
    service, load = 0.01, 0.7
    one = Simulation(
        FREE._replace(step=((1, service / 5),)), Machine(cores=1, workers=1, max_rows=4, queue_size=10**6), beam=4
    )
    due = poisson(load / service, 150.0, seed=3)
    waits = latencies(one.run(due, [5] * len(due))) - service
    assert np.mean(waits) == pytest.approx(service * load / (2 * (1 - load)), rel=0.1)  # Pollaczek and Khinchine


def test_rows_that_cost_nothing_are_served_together() -> None:
    machine = Machine(cores=1, workers=1, max_rows=64, queue_size=1000)
    jobs = Simulation(FREE._replace(step=((1, 0.001),)), machine, beam=4).run([0.0] * 16, [10] * 16)
    assert latencies(jobs).max() == pytest.approx(0.011)  # the first begins alone, and all others join after a step


def test_two_workers_need_two_cores() -> None:
    costs = FREE._replace(step=((0, 0.001), (64, 0.065)))
    due, steps = [0.0] * 64, [10] * 64
    seconds = [
        latencies(Simulation(costs, Machine(cores, 2, 32, 1000), beam=1).run(due, steps)).max() for cores in (1, 2)
    ]
    assert seconds[0] == pytest.approx(2 * seconds[1], rel=0.02)


def test_a_full_queue_refuses_and_the_rest_is_answered_at_the_rate_of_the_worker() -> None:
    machine = Machine(cores=1, workers=1, max_rows=1, queue_size=10)
    due = poisson(300.0, 20.0, seed=5)
    jobs = Simulation(FREE._replace(step=((1, 0.01),)), machine, beam=1).run(due, [1] * len(due))
    assert answered_per_second(jobs, 20.0) == pytest.approx(100.0, rel=0.01)
    assert latencies(jobs).max() <= 0.11 + 1e-9


def test_calls_share_one_event_loop() -> None:
    machine = Machine(cores=4, workers=2, max_rows=64, queue_size=1000)
    jobs = Simulation(FREE._replace(call_s=0.01), machine, beam=1).run([0.0] * 10, [1] * 10)
    assert latencies(jobs).max() == pytest.approx(0.1)


def test_a_worker_waits_for_the_lock_that_the_event_loop_holds() -> None:
    """A step is 6 ms, 1 of them with the lock, which pieces of 4 ms of the event loop hold in turn with it."""
    costs = FREE._replace(step=((1, 0.006),), call_s=0.008, python_s=0.001)
    machine = Machine(cores=4, workers=1, max_rows=64, queue_size=1000)
    alone = latencies(Simulation(costs, machine, beam=1).run([0.0], [10]))
    assert alone.max() == pytest.approx(0.008 + 10 * 0.006)
    ends = []
    for python_s in (0.0, 0.001):
        crowd = Simulation(costs._replace(python_s=python_s), machine, beam=1).run([0.0] * 40, [10] * 40)
        ends.append(crowd[0].ended or 0.0)
    assert ends[0] == pytest.approx(41 * 0.004)  # its second piece is the event loop's 41st
    assert ends[1] > ends[0] + 0.01


def test_a_worker_that_was_idle_needs_longer() -> None:
    costs = FREE._replace(step=((1, 0.01),), waking_s=0.003)
    machine = Machine(cores=1, workers=1, max_rows=1, queue_size=10)
    found = latencies(Simulation(costs, machine, beam=1).run([0.0, 0.001, 1.0], [1, 1, 1]))
    assert found == pytest.approx([0.013, 0.022, 0.013])


def test_the_time_that_workers_work() -> None:
    costs = FREE._replace(step=((1, 0.01),), call_s=0.001)
    simulation = Simulation(costs, Machine(cores=1, workers=1, max_rows=1, queue_size=10), beam=1)
    jobs = simulation.run([0.0, 0.005, 0.006], [2, 1, 1])  # the event loop interrupts
    ends = [job.ended or 0.0 for job in jobs]
    assert simulation.worked_s == pytest.approx(max(ends) - 0.0005 - 0.0005)  # from the first call's arrival on


def test_many_interruptions_lose_no_work() -> None:
    costs = FREE._replace(step=((1, 0.002),), call_s=0.001, caller_s=0.001)
    machine = Machine(cores=1, workers=2, max_rows=4, queue_size=10**6)
    due = poisson(400.0, 2.0, seed=6)
    jobs = Simulation(costs, machine, beam=4).run(due, [2] * len(due))
    assert all(job.ended is not None for job in jobs)
    assert max(job.ended or 0.0 for job in jobs) == pytest.approx(len(jobs) * (0.001 + 0.001 + 2 * 0.002), rel=0.01)


def test_times_between_and_beyond_what_was_measured() -> None:
    curve = ((4, 1.0), (8, 2.0), (16, 6.0))
    assert [at(curve, number) for number in (2, 4, 6, 16, 20)] == pytest.approx([1.0, 1.0, 1.5, 6.0, 8.0])
