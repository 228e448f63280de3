"""A batch whose search runs in the graph, with a graph in NumPy that searches as the host does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from tests.engine.scheduling.fake_search import BROKEN, ApartMirror, FakeSessions, FakeStep, expected

from hmc.artifact.bundle.manifest import SearchVariant
from hmc.engine.caches import collector, searches
from hmc.engine.caches.searches import FIRST_RUN_STEPS, Searches
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import Job, Mode
from hmc.engine.decoding.state import Rules
from hmc.engine.requests.results import Decoded, DecodedHypothesis
from hmc.engine.runtime.device import Device
from hmc.engine.scheduling.device_batch import AT_MOST, EVERY, DeviceBatch
from hmc.serving import DecodeOptions


@pytest.fixture(autouse=True, params=["shared", "apart"])
def mirrors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the host sees the device's memory, or copies of it."""
    if request.param == "apart":
        for module in (searches, collector):
            monkeypatch.setattr(module, "MirroredArrays", ApartMirror)


def batch_of(beam: int, max_rows: int = 64, max_tokens: int = 32768) -> DeviceBatch:
    variant = "search_greedy" if beam == 1 else "search_beam"
    sessions = FakeSessions(FakeStep(tree=beam > 1))
    return DeviceBatch(Searches(sessions, variant, beam, max_rows, max_tokens))  # type: ignore[arg-type]


def job_of(source: list[int], options: DecodeOptions, limit: int = 30) -> Job:
    variant: SearchVariant = "search_greedy" if options.rows == 1 else "search_beam"
    rules = Rules.from_options(options, options.max_length or limit)
    return Job(source, options, Constraints(), rules, Mode(options.rows, variant))


def some_jobs(count: int, beam: int, seed: int = 0, longest: int = 25) -> list[Job]:
    """Of all lengths, limits, least lengths, penalties and numbers of hypotheses."""
    rng = np.random.default_rng(seed)
    jobs = []
    for _ in range(count):
        source = [*rng.integers(3, 10, int(rng.integers(1, longest))).tolist(), 1]
        least = int(rng.integers(1, 20)) if rng.random() < 0.3 else 1
        options = DecodeOptions(
            beam_size=beam,
            n_best=int(rng.integers(1, beam + 1)),
            length_penalty=float(rng.choice([0.0, 0.6, 1.0, 1.7])),
            min_length=least,
            max_length=least + int(rng.integers(0, 40)),
        )
        jobs.append(job_of(source, options))
    return jobs


def same(found: tuple[DecodedHypothesis, ...], wanted: tuple[DecodedHypothesis, ...]) -> bool:
    """To the last bit, with the scores of tokens."""
    return found == wanted and [h.token_scores for h in found] == [h.token_scores for h in wanted]


def drain(batch: DeviceBatch, undisturbed: Callable[[], bool] = lambda: True) -> dict[int, Decoded | None]:
    """Runs until no sentence is left; by the identity of jobs."""
    found: dict[int, Decoded | None] = {}
    for _ in range(10_000):
        if not batch.jobs:
            return found
        for job, decoded in batch.step(undisturbed).ended:
            assert id(job) not in found
            found[id(job)] = decoded
    raise AssertionError("the batch never ends")


def check(jobs: list[Job], found: dict[int, Decoded | None]) -> None:
    for job in jobs:
        decoded = found[id(job)]
        assert decoded is not None
        assert same(decoded.hypotheses, expected(job.source, job.options, job.rules.limit))


@pytest.mark.parametrize("beam", [1, 2, 3, 4, 8])
def test_finds_what_the_search_on_the_host_finds(beam: int) -> None:
    """Ids, scores and scores of tokens are the same to the last bit."""
    batch, jobs = batch_of(beam), some_jobs(24, beam)
    batch.admit(jobs)
    check(jobs, drain(batch))


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_sentences_arrive_and_are_cancelled_at_any_time(beam: int, seed: int) -> None:
    """Slots are used again, and a sentence's result does not depend on what else is there."""
    rng = np.random.default_rng(seed)
    batch, jobs = batch_of(beam, max_rows=8 * beam), some_jobs(60, beam, seed)
    waiting, found = list(jobs), dict[int, Decoded | None]()
    cancelled: set[int] = set()
    while waiting or batch.jobs:
        free = 8 - len(batch.jobs)
        now = [waiting.pop() for _ in range(int(rng.integers(0, free + 1))) if waiting]
        if now:
            batch.admit(now)
        calm = rng.random() < 0.5
        if batch.jobs and not calm and rng.random() < 0.2:
            leaving = batch.jobs[int(rng.integers(len(batch.jobs)))]
            leaving.future.cancel()
            cancelled.add(id(leaving))
        for job, decoded in batch.step(partial(bool, calm)).ended:
            assert id(job) not in found
            found[id(job)] = decoded
    assert {n for n, decoded in found.items() if decoded is None} <= cancelled
    assert cancelled
    check([job for job in jobs if id(job) not in cancelled], found)


def test_caches_grow_before_they_run_short() -> None:
    """Trees are tight at first; longer sentences need more room in a running batch."""
    batch, first = batch_of(8), some_jobs(6, 8, seed=3, longest=8)
    batch.admit(first)
    geometries = [batch.searches._geometry]
    found: dict[int, Decoded | None] = {}
    late = [*some_jobs(3, 8, seed=4), job_of([4] * 60 + [1], DecodeOptions(beam_size=8), 120)]
    while batch.jobs:
        for job, decoded in batch.step(lambda: False).ended:
            found[id(job)] = decoded
        geometries.append(batch.searches._geometry)
        if late and len(found) >= 2:
            batch.admit(late)
            first, late = first + late, []
    check(first, found)
    nodes, buckets = ([getattr(g, name) for g in geometries if g] for name in ("nodes", "bucket"))
    assert nodes == sorted(nodes)
    assert any(small.bucket == large.bucket and small.full < large.full for small, large in zip(
        filter(None, geometries), filter(None, geometries[1:]), strict=False))  # fmt: skip
    assert buckets[-1] > buckets[0]


def test_a_batch_begins_small_again_when_it_was_empty() -> None:
    batch = batch_of(4)
    batch.admit([job_of([4] * 60 + [1], DecodeOptions(), 120)])
    drain(batch)
    batch.admit([job_of([4, 1], DecodeOptions(), 20)])
    geometry = batch.searches._geometry
    assert geometry is not None
    assert (geometry.bucket, geometry.full) == (0, False)


def test_sentences_that_find_no_slot_wait_in_the_batch() -> None:
    """Caches for long sentences have fewer slots. Nothing overtakes a sentence that waits."""
    batch = batch_of(4, max_rows=32, max_tokens=4 * 4 * 64)
    short, long = some_jobs(4, 4, seed=1, longest=10), job_of([5] * 50 + [1], DecodeOptions(), 100)
    batch.admit(short)
    batch.admit([long, *(more := some_jobs(3, 4, seed=2, longest=10))])
    calls = batch.searches.encoder.session.slots  # type: ignore[union-attr]
    assert len(calls) == 1
    jobs = [*short, long, *more]
    assert batch.jobs == jobs
    check(jobs, drain(batch))
    assert [len(set(slots)) for slots in calls] == [4, 4]  # those behind the long one are encoded with it


def test_a_sentence_that_waits_in_the_batch_can_be_cancelled() -> None:
    batch = batch_of(4, max_rows=32, max_tokens=4 * 4 * 64)
    short, long = some_jobs(4, 4, seed=1, longest=10), job_of([5] * 50 + [1], DecodeOptions(), 100)
    batch.admit([*short, long])
    long.future.cancel()
    assert [(job, decoded) for job, decoded in batch.step(lambda: False).ended if job is long] == [(long, None)]
    check(short, drain(batch))


@pytest.mark.parametrize("beam", [1, 4])
def test_a_sentence_whose_scores_are_no_numbers_fails_alone(beam: int) -> None:
    batch, jobs = batch_of(beam, max_rows=4 * beam), some_jobs(3, beam)
    broken = job_of([BROKEN, 4, 1], DecodeOptions(beam_size=beam), 30)
    batch.admit([jobs[0], broken, *jobs[1:]])
    found = drain(batch)
    decoded = found[id(broken)]
    assert decoded is not None
    assert [(h.ids, str(h.score), h.complete) for h in decoded.hypotheses] == [((), "nan", False)]
    check(jobs, found)
    batch.admit(again := some_jobs(4, beam, seed=9))
    check(again, drain(batch))


def test_the_host_looks_seldom() -> None:
    """Not while no search can have ended; then every few steps; and at once if there is something else to do."""
    batch = batch_of(4)
    reports: list[int] = []
    runs = batch.searches.sessions.step.runs  # type: ignore[attr-defined]
    report = batch.searches.report

    def noted() -> tuple[int, int]:
        reports.append(len(runs))
        return report()

    batch.searches.report = noted  # type: ignore[method-assign]
    batch.admit([job_of([4, 5, 1], DecodeOptions(min_length=20, max_length=40))])
    batch.step(lambda: False)
    assert reports == [1]
    batch.step(lambda: True)
    gaps = np.diff(reports).tolist()
    assert gaps[:2] == [AT_MOST, AT_MOST]
    assert set(gaps[2:]) == {EVERY}


def test_the_device_goes_on_while_the_host_makes_hypotheses() -> None:
    batch, jobs = batch_of(4), some_jobs(12, 4)
    batch.admit(jobs)
    found = dict[int, Decoded | None]()
    while not found:
        found |= {id(job): decoded for job, decoded in batch.step(lambda: True).ended}
    assert batch._unread == 1
    batch.admit(more := some_jobs(5, 4, seed=1))
    check([*jobs, *more], found | drain(batch))


def several_executions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a binding executes as often as that of a captured graph."""
    seen: set[int] = set()
    run = FakeStep.run_with_iobinding

    def several(self: FakeStep, binding: object, options: object = None) -> None:
        for _ in range(1 if id(binding) in seen else FIRST_RUN_STEPS):
            run(self, binding, options)  # type: ignore[arg-type]
        seen.add(id(binding))

    monkeypatch.setattr(FakeStep, "run_with_iobinding", several)


def test_a_captured_graph_takes_several_steps_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, jobs = batch_of(4, max_rows=32), some_jobs(8, 4)
    several_executions(monkeypatch)
    batch.searches.device = Device("cuda")
    batch.admit(jobs)
    found = {id(job): decoded for job, decoded in batch.step(lambda: False).ended}
    assert batch._steps == 3
    check(jobs, found | drain(batch))


def test_a_graph_that_is_first_run_in_the_middle_of_searches_counts_its_own_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When other sentences have left, a step of fewer slots runs. What a search has made before does not count again,
    or it would end too early."""
    batch, least = batch_of(1, max_rows=16), [60, 6, 6, 6, 6]
    jobs = [job_of([4, n + 3, 1], DecodeOptions(beam_size=1, min_length=m, max_length=m)) for n, m in enumerate(least)]
    several_executions(monkeypatch)
    batch.searches.device = Device("cuda")
    batch.admit(jobs)
    found = dict[int, Decoded | None]()
    while len(found) < 4:
        found |= {id(job): decoded for job, decoded in batch.step(lambda: False).ended}
    before = batch._steps
    batch.step(lambda: False)
    assert batch._steps == before + FIRST_RUN_STEPS
    check(jobs, found | drain(batch))


def test_times_are_those_of_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    batch, job = batch_of(4), job_of([4, 5, 1], DecodeOptions(), 10)
    job.submitted, now[0] = 100.0, 103.0
    batch.admit([job])
    now[0] = 110.0
    decoded = drain(batch)[id(job)]
    assert decoded is not None
    assert (decoded.queue_s, decoded.compute_s) == (3.0, 7.0)


def test_sentences_that_will_begin_are_encoded_with_those_that_begin() -> None:
    """They find what they find alone; they count as begun when their search begins; some never do."""
    batch, jobs = batch_of(4, max_rows=16), some_jobs(60, 4, seed=5)
    waiting, found = deque(jobs), dict[int, Decoded | None]()
    calls = batch.searches.encoder.session.slots  # type: ignore[union-attr]
    while waiting or batch.jobs:
        if len(waiting) == 30:
            (leaving := waiting[2]).future.cancel()
            waiting.remove(leaving)
            jobs.remove(leaving)
        if new := [waiting.popleft() for _ in range(min(len(waiting), 4 - len(batch.jobs)))]:
            batch.admit(new, lambda: list(waiting))
        assert not any(job.started for job in waiting)
        found |= {id(job): decoded for job, decoded in batch.step(lambda: True).ended}
    check(jobs, found)
    assert len(calls) == 1


@pytest.mark.parametrize("beam", [1, 4])
def test_caches_grow_and_shrink_while_sentences_are_staged(beam: int) -> None:
    """A sentence with room for a long translation makes caches grow; when the batch is empty they are small again."""
    batch = batch_of(beam, max_rows=4 * beam)
    first, staged = some_jobs(2, beam, seed=1), some_jobs(8, beam, seed=2)
    roomy = job_of([4] * 20 + [1], DecodeOptions(beam_size=beam, max_length=110))
    calls = batch.searches.encoder.session.slots  # type: ignore[union-attr]
    batch.admit(first, lambda: [roomy, *staged])
    rooms, found = [_room(batch)], dict[int, Decoded | None]()
    for group in ([roomy, staged[0]], staged[1:4]):
        batch.admit(group, list)
        rooms.append(_room(batch))
        found |= drain(batch)
    batch.admit(staged[4:], list)
    rooms.append(_room(batch))
    assert rooms[0] < rooms[1] > rooms[2] == rooms[3]
    assert len(calls) == 1
    check([*first, roomy, *staged], found | drain(batch))


def _room(batch: DeviceBatch) -> int:
    assert batch.searches._geometry is not None
    return batch.searches._geometry.source
