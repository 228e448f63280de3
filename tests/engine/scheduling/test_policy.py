"""The rules of scheduling: time and cache memory, shared by the batches of a level."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.scheduling.watched import before_steps
from tests.serving.fakes import GUARD_S, FakeClock, eventually

from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.caller import Priority
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.batch import HostBatch
from hmc.engine.scheduling.budgets import IDLE_S, TokenBudget
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.policy import AdmissionPolicy, TimeSlices
from hmc.engine.scheduling.queue import WaitingQueue
from hmc.engine.scheduling.scheduler import Scheduler
from hmc.serving import DecodeOptions, Sampling

OTHER, BEAMS, GREEDY = Mode(4, interactive=False), Mode(4), Mode(1, "greedy")


def test_both_kinds_have_about_the_same_time() -> None:
    slices, spent = TimeSlices(), {True: 0.0, False: 0.0}
    seconds = {OTHER: 0.025, BEAMS: 0.002, GREEDY: 0.001}
    longest = 0.0
    for _ in range(500):
        chosen = slices.choose([BEAMS, OTHER, GREEDY])
        assert chosen in ([BEAMS, GREEDY], [OTHER])
        took = sum(seconds[mode] for mode in chosen)
        slices.count(chosen, took)
        spent[chosen == [OTHER]] += took
        longest = max(longest, abs(spent[True] - spent[False]))
    assert longest <= 0.025 + 0.003


@pytest.mark.parametrize("running", [[OTHER], [BEAMS, GREEDY], []])
def test_one_kind_alone_takes_no_turns(running: list[Mode]) -> None:
    slices = TimeSlices()
    for _ in range(3):
        assert slices.choose(running) == running
        slices.count(running, 1.0)


def test_time_alone_is_not_counted_against_a_kind() -> None:
    slices = TimeSlices()
    for alone, joining in ((BEAMS, OTHER), (OTHER, BEAMS)):
        for _ in range(10):
            slices.count(slices.choose([alone]), 1.0)
        assert slices.choose([BEAMS, OTHER]) == [joining]
        slices.count([joining], 1.25)
        assert slices.choose([BEAMS, OTHER]) == [alone]


@pytest.mark.parametrize(
    ("free", "waiting", "interactive", "held_back"),
    [
        (3, 4, 0, True),  # more are waited for than are free, and less than a quarter of 16 is free
        (3, 3, 0, False),
        (4, 9, 0, False),
        (3, 9, 3, False),  # all interactive ones fit
        (3, 9, 4, True),
    ],
)
def test_free_rows_are_saved_for_sentences_that_start_together(
    free: int, waiting: int, interactive: int, held_back: bool
) -> None:
    assert AdmissionPolicy(16).holds_back(free, waiting, interactive) is held_back


def test_long_sentences_of_others_start_in_parts() -> None:
    """An interactive sentence waits for what is encoded at once, and no longer."""
    queue = WaitingQueue(1000, FakeClock())
    scheduler = Scheduler(queue, [], max_rows=64, max_tokens=1_000_000, clock=FakeClock())
    for _ in range(40):
        queue.put(Job([5] * 256, DecodeOptions(beam_size=1), Constraints(), Rules(40), Mode(1, interactive=False)))
    sizes, chosen, late = (
        list[dict[bool, int]](),
        list[Mode](),
        Job([5] * 9, DecodeOptions(beam_size=1), Constraints(), Rules(40), Mode(1)),
    )
    for turn in range(3):
        plan = scheduler.schedule()
        assert plan is not None
        sizes.append({mode.interactive: len(jobs) for mode, jobs in plan.started.items()})
        for mode in plan.started:
            scheduler.encoded(mode, 0.3)
        chosen = scheduler.begin_step()
        scheduler.end_step([])
        if turn == 0:
            queue.put(late)
    assert sizes == [{False: 16}, {True: 1, False: 16}, {False: 8}]
    assert chosen == [Mode(1)], "their encoding took time, which interactive sentences now have"


def test_all_batches_share_one_budget() -> None:
    budget = TokenBudget(100)
    assert budget.take(BEAMS, 4, 20)
    assert budget.take(GREEDY, 1, 20)
    assert not budget.take(GREEDY, 1, 11)  # two rows of 20 would be 120 in all
    assert budget.running == 100
    budget.empty(BEAMS, now=0.0)
    assert budget.take(GREEDY, 1, 50)
    assert (budget.running, budget.kept) == (100, 80)


def test_a_sentence_over_the_budget_runs_alone() -> None:
    budget = TokenBudget(100)
    assert budget.take(BEAMS, 4, 50)
    assert not budget.take(GREEDY, 1, 1)
    budget.empty(BEAMS, now=0.0)
    assert budget.evict(now=0.0) == [BEAMS]
    assert budget.take(GREEDY, 1, 1)
    assert not budget.take(BEAMS, 4, 50)


def test_caches_of_empty_batches_go_when_the_budget_needs_them_and_after_a_while() -> None:
    budget = TokenBudget(100)
    for now, mode in enumerate((BEAMS, OTHER, GREEDY)):
        assert budget.take(mode, 4, 8)
        budget.empty(mode, now)
    assert budget.evict(now=3.0) == []
    assert budget.kept == 96
    assert budget.take(OTHER, 4, 10)
    assert budget.evict(now=3.0) == [BEAMS]
    assert budget.next_eviction(now=3.0) == 2.0 + IDLE_S - 3.0
    assert budget.evict(now=2.0 + IDLE_S) == [GREEDY]
    assert budget.next_eviction(now=3.0) is None
    assert budget.running == 40


def modes(engine: Engine) -> set[Mode]:
    """The modes of the batches that have caches."""
    return set(engine.workers[0]._batches)


def test_a_mode_used_once_keeps_no_caches_while_other_sentences_go_on(sessions: LevelSessions) -> None:
    clock, source = FakeClock(), [5, 9, 40, 7, 0]
    engine = Engine(sessions, queue_size=100, max_rows=64, clock=clock)
    greedy, beams = DecodeOptions(beam_size=1, max_length=5), DecodeOptions(beam_size=5, max_length=5)
    engine.submit(source, beams).result(GUARD_S)
    engine.submit(source, greedy).result(GUARD_S)
    assert modes(engine) == {Mode(5), Mode(1, "greedy")}
    for _ in range(3):
        clock.now += 0.4 * IDLE_S
        engine.submit(source, greedy).result(GUARD_S)
    assert modes(engine) == {Mode(1, "greedy")}
    clock.now += IDLE_S
    with engine.queue.changed:
        engine.queue.changed.notify_all()
    eventually(lambda: not modes(engine))
    engine.close()


def test_modes_together_keep_to_one_budget(sessions: LevelSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 300
    engine = Engine(sessions, queue_size=200, max_rows=64, max_tokens=most)
    tokens: list[int] = []

    def count(_: object) -> None:
        every = (b for b in engine.workers[0]._batches.values() if isinstance(b, HostBatch))
        held = [b for b in every if b.jobs]
        tokens.append(sum(len(b.jobs) * b.mode.rows * max(job.longest for job in b.jobs) for b in held))

    before_steps(monkeypatch, count)
    asked = [
        DecodeOptions(beam_size=1, max_length=20),
        DecodeOptions(beam_size=2, max_length=20),
        DecodeOptions(beam_size=3, max_length=20),
        DecodeOptions(max_length=20, sampling=Sampling(seed=1)),
    ]
    priorities = list(Priority)
    with engine.queue.changed:
        futures = [engine.submit([5, 9, 40, 0], asked[n % 4], priority=priorities[n % 3]) for n in range(60)]
    assert all(future.result(GUARD_S).hypotheses for future in futures)
    engine.close()
    assert most / 2 < max(tokens) <= most


MOST = 200


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows, positions of the longest sentence) at every step of every batch."""
    found: list[tuple[int, int]] = []

    def note(batch: HostBatch) -> None:
        found.append((len(batch.jobs) * batch.mode.rows, max(job.longest for job in batch.jobs)))

    before_steps(monkeypatch, note)
    return found


@pytest.mark.parametrize("beam", [1, 3])
def test_long_sentences_run_with_fewer_others(sessions: LevelSessions, seen: list[tuple[int, int]], beam: int) -> None:
    rng = np.random.default_rng(beam)
    sources = [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 40, size=40)]
    limits = rng.choice([8, 20, 95], size=40).tolist()

    def run(max_tokens: int) -> list[tuple[int, ...]]:
        engine = Engine(sessions, queue_size=100, max_rows=32, max_tokens=max_tokens)
        options = [DecodeOptions(beam_size=beam, max_length=limit) for limit in limits]
        futures = [engine.submit(s, o) for s, o in zip(sources, options, strict=True)]
        answers = [f.result().hypotheses[0].ids for f in futures]
        engine.close()
        return answers

    free = run(100_000)
    assert max(rows * longest for rows, longest in seen) > MOST
    seen.clear()
    assert run(MOST) == free
    together = [(rows, longest) for rows, longest in seen if rows > beam]
    assert together, "something ran together"
    assert all(rows * longest <= MOST for rows, longest in together)
    assert any(rows * longest > MOST for rows, longest in seen) == (beam * 95 > MOST)  # alone, it may
