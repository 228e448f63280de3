"""Device caches, with this machine's memory as the device: they give the same translations as host caches, for every
kind of search, at fp32 and fp16."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bundles import bundle_at
from tests.once import Once
from tests.serving.fakes import GUARD_S, FakeClock, eventually

from hmc.artifact import InvalidArtifactError, read_manifest
from hmc.artifact.bundle.manifest import Variant
from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.caches.choice import device_caches
from hmc.engine.caches.device import DeviceCaches
from hmc.engine.caches.geometry import Chain, Geometry
from hmc.engine.caches.pools import Pools
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.runtime.bound_steps import MOST_UNCAPTURED, BoundSteps
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling import budgets
from hmc.engine.scheduling.batch import HostBatch
from hmc.engine.scheduling.device_batch import DeviceBatch
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions, Sampling

OPTIONS = [
    *(DecodeOptions(beam_size=b, max_length=90, n_best=b) for b in (1, 4)),
    DecodeOptions(beam_size=3, max_length=40, coverage_penalty=0.3, repetition_penalty=1.2, no_repeat_ngram_size=2),
    DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1)),
    DecodeOptions(n_best=2, max_length=40, sampling=Sampling(seed=1, top_p=0.8)),
    DecodeOptions(beam_size=2, patience=0.5, alignment=True),
]
Found = list[tuple[list[tuple[Any, ...]], list[tuple[int, ...]]]]
"""For each sentence its hypotheses (ids, score, best source token of each token), and the tokens that were certain
after each step that made some so."""


def assert_same(found: Found, expected: Found) -> None:
    """Scores differ by roundings only, because graphs in device form add in another order. So hypotheses may change
    places where their scores are as near as that; all else is the same."""
    exact = 0
    for (ours, certain), (theirs, expected_certain) in zip(found, expected, strict=True):
        np.testing.assert_allclose([h[1] for h in ours], [h[1] for h in theirs], atol=2e-4)
        ids = [[h[0] for h in each] for each in (ours, theirs)]
        if ids[0] == ids[1]:
            exact += 1
            assert [h[2] for h in ours] == [h[2] for h in theirs]
            assert certain == expected_certain
    assert exact >= 0.9 * len(found)


@pytest.fixture(scope="module")
def on_device(lively_checkpoint: Path, once: Once) -> Path:
    """The levels of `lively_bundle` in fp32 and h12 in fp16, in device form. Read-only."""
    return once(bundle_at, lively_checkpoint, (24, 12), ("fp32", "fp16"), device_form=True)


def opened(bundle: Path, level: str = "h12") -> Any:
    manifest = read_manifest(bundle)
    return LevelSessions.open(bundle, manifest.architecture, manifest.level(level), Device("cpu"), 1)


def some_sources(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[*rng.integers(3, 120, size=n).tolist(), 0] for n in rng.integers(1, 50, size=count)]


def constrained(source: list[int], options: DecodeOptions) -> tuple[Any, ...]:
    """Prefix, whether it is all, phrases that are banned, and the length of what may not occur twice."""
    banned = ((9,), (7, 11)) if source[0] % 5 == 0 else ()
    return (5, 6) if source[0] % 2 else (), False, banned, options.no_repeat_ngram_size


def decode(
    sessions: LevelSessions, sources: list[list[int]], options: Sequence[DecodeOptions], max_tokens: int = 32768
) -> Found:
    """12 rows at a time: sentences join and leave, and slots are used again."""
    running = Engine(sessions, queue_size=500, max_rows=12, max_tokens=max_tokens)
    certain: list[list[tuple[int, ...]]] = [[] for _ in range(len(options) * len(sources))]
    pairs = [(o, s) for o in options for s in sources]
    try:
        futures = [
            running.submit(s, o, Constraints(*constrained(s, o)), certain[n].append if n % 3 == 0 else None)
            for n, (o, s) in enumerate(pairs)
        ]
        results = [future.result(600) for future in futures]
    finally:
        running.close()
    hypotheses = [
        [
            (h.ids, round(h.score, 4), None if h.attention is None else h.attention.argmax(axis=1).tolist())
            for h in r.hypotheses
        ]
        for r in results
    ]
    return list(zip(hypotheses, certain, strict=True))


def given_scores(sessions: LevelSessions, sources: list[list[int]], targets: list[tuple[int, ...]]) -> list[float]:
    """The score of a given translation of each sentence."""
    running = Engine(sessions, queue_size=500, max_rows=12)
    try:
        futures = [
            running.submit(source, DecodeOptions(beam_size=1), Constraints(tuple(target), True))
            for source, target in zip(sources, targets, strict=True)
        ]
        return [future.result(600).hypotheses[0].score for future in futures]
    finally:
        running.close()


@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "beam", "penalties", "sampling", "top-p", "alignment"])
def test_same_translations_as_the_host_caches(lively_bundle: Path, on_device: Path, options: DecodeOptions) -> None:
    sources = some_sources(25)
    assert_same(decode(opened(on_device), sources, [options]), decode(opened(lively_bundle), sources, [options]))


def test_modes_and_geometries_together(lively_bundle: Path, on_device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so few tokens a long sentence moves those before it to other slots, and pools of modes take turns."""
    sources, moves = some_sources(25), list[tuple[Geometry, Geometry, Sequence[tuple[int, int]]]]()
    move = Pools.move

    def noted(self: Pools, source: Geometry, target: Geometry, slots: Sequence[tuple[int, int]] = ()) -> None:
        moves.append((source, target, slots))
        move(self, source, target, slots)

    monkeypatch.setattr(Pools, "move", noted)
    monkeypatch.setattr(budgets, "MODES", 2)
    options = [*OPTIONS, *(DecodeOptions(beam_size=b, patience=p) for b in (1, 3) for p in (None, 0.7))]
    expected = decode(opened(lively_bundle, "full"), sources, options)
    for tokens in (500, 1500):
        assert_same(decode(opened(on_device, "full"), sources, options, max_tokens=tokens), expected)
    assert any(target.source > source.source for source, target, _ in moves)
    assert any(target.nodes > source.nodes and target.bucket == source.bucket for source, target, _ in moves)


@pytest.mark.parametrize("rows", [1, 3])
def test_sentences_that_run_keep_what_they_have_when_caches_grow(on_device: Path, rows: int) -> None:
    """The same steps give the same scores in caches that grow meanwhile, and move sentences to other slots."""

    greedy: Variant = "greedy"

    def scores(caches: DeviceCaches, grow: bool) -> list[Any]:
        sources, found = [[5, 6 + n, 0] for n in range(4)], []
        caches.add(sources, [()] * 4, [20] * 4)
        caches.keep([3, 2])
        for length in range(6):
            if grow and length == 3:
                caches.add([[7] * 40 + [0]], [()], [80])
            count = len(caches.slots) * rows
            step = {
                "tokens": np.full(count, 9 + length, np.int32), "lengths": np.full(count, length, np.int32),
                "candidates": np.array([2 * rows + 1]),
            }  # fmt: skip
            found.append(caches.run(step)["scores"][: 2 * rows].copy())
            caches.reorder(np.arange(count) // rows * rows)
        return found

    sessions, variant = opened(on_device), greedy if rows == 1 else None
    plain = device_caches(sessions, variant, rows, 4 * rows, 300 * rows)
    grown = device_caches(sessions, variant, rows, 4 * rows, 300 * rows)
    for one, other in zip(scores(plain, False), scores(grown, True), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)  # sums over longer rooms run in another order
    assert plain.slots.tolist() == [3, 2]
    assert sorted(grown.slots.tolist()) == [0, 1, 2]  # the larger geometry has no slot 3
    assert grown.geometry is not None
    assert grown.geometry.bucket == 1


def test_a_slot_is_kept_and_used_again(on_device: Path) -> None:
    caches = device_caches(opened(on_device), None, 2)
    assert caches.groups([2, 40, 2]) == [[0, 1, 2]]
    caches.add([[5, 0]] * 3, [()] * 3)
    assert (caches.slots.tolist(), caches.size) == ([0, 1, 2], 4)
    caches.keep([2, 0])
    assert caches.slots.tolist() == [2, 0]
    caches.add([[5, 6, 0]] * 3, [()] * 3)
    assert (caches.slots.tolist(), caches.size) == ([2, 0, 1, 3, 4], 16)
    caches.keep([1])
    assert (caches.slots.tolist(), caches.size) == ([0], 1)


def test_more_sentences_than_slots_are_refused(on_device: Path) -> None:
    caches = device_caches(opened(on_device), "greedy", 1, max_rows=4)
    with pytest.raises(ValueError, match="5 sentences do not fit into 4 slots"):
        caches.add([[5, 0]] * 5, [()] * 5)


def held_by(batch: Any) -> tuple[BoundSteps, Pools, Chain]:
    """What a batch holds on the device, whichever kind it is."""
    if isinstance(batch, DeviceBatch):
        return batch.searches._steps, batch.searches.pools, batch.searches.chain
    caches = batch.caches
    return caches.steps.steps, caches.pools, caches.chain


def test_nothing_is_made_after_the_warm_up(on_device: Path) -> None:
    """Bindings, graphs and memory are those of the warm-up, whatever sentences come; unusual steps keep a few more."""
    sessions = opened(on_device)
    sessions.warming_up = True
    engine = Engine(sessions, queue_size=500, max_rows=16)
    try:
        modes = [DecodeOptions(beam_size=b, patience=p) for b in (1, 4) for p in (None, 0.5)]
        for options in modes:
            engine.submit([5, 0], options).result(600)
        sessions.warming_up = False
        batches = list(engine.workers[0]._batches.values())
        parts = [held_by(batch) for batch in batches]
        assert {type(batch) for batch in batches} == {HostBatch, DeviceBatch}

        def made() -> list[tuple[int, int]]:
            return [(len(steps), pools.bytes) for steps, pools, _ in parts]

        before, held = made(), sessions.memory.reserved
        assert [bindings for bindings, _ in before] == [sum(len(g.sizes()) for g in chain) for _, _, chain in parts]
        futures = [engine.submit(s, o) for s in some_sources(60) for o in modes]
        assert all(future.result(600).hypotheses for future in futures)
        assert (made(), sessions.memory.reserved) == (before, held)
        banned = [Constraints(suppressed=tuple((t,) for t in range(5, n))) for n in (10, 25, 40, 60, 80, 100)]
        futures = [engine.submit(s, modes[-1], each) for s in some_sources(10) for each in banned]
        assert all(future.result(600).hypotheses for future in futures)
        assert made() == before
        assert 0 < max(len(steps._uncaptured) for steps, _, _ in parts) <= MOST_UNCAPTURED
    finally:
        engine.close()


@pytest.mark.parametrize("patience", [None, 0.5], ids=["search on the device", "search on the host"])
def test_an_idle_mode_gives_its_memory_back_and_takes_a_new_session(on_device: Path, patience: float | None) -> None:
    sessions, clock = opened(on_device), FakeClock()
    engine = Engine(sessions, queue_size=10, max_rows=8, clock=clock)
    batches: Any = engine.workers[0]._batches
    answers, used = [], []
    try:
        for _ in range(3):
            answers.append(
                engine.submit([5, 9, 40, 0], DecodeOptions(beam_size=2, patience=patience)).result(GUARD_S).hypotheses
            )
            [(mode, batch)] = batches.items()
            used.append(held_by(batch)[0].session)
            del batch
            assert sessions.memory.reserved > 0
            clock.now += budgets.POOLS_IDLE_S
            with engine.queue.changed:
                engine.queue.changed.notify_all()
            eventually(lambda: sessions.memory.reserved == 0)
            eventually(partial(sessions.decoders.__contains__, mode.variant))  # a fresh one for the next batch
    finally:
        engine.close()
        for thread in threading.enumerate():
            if thread.name.startswith("hmc-open"):
                thread.join()
    assert answers[0] == answers[1] == answers[2]
    assert len({id(session) for session in used}) == 3


def test_a_mode_without_sentences_gives_way_where_memory_is_short(
    on_device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = opened(on_device)
    engine = Engine(sessions, queue_size=10, max_rows=8)
    greedy, beam = DecodeOptions(beam_size=1), DecodeOptions(beam_size=4)
    try:
        expected = [engine.submit([5, 9, 40, 0], each).result(GUARD_S).hypotheses for each in (greedy, beam)]
        batches = engine.workers[0]._batches
        assert [mode.rows for mode in batches] == [1, 4]
        monkeypatch.setattr(sessions.memory._whole, "budget", sessions.memory._whole.reserved)
        for options, answer in ((greedy, expected[0]), (beam, expected[1])):  # both are held, and need nothing more
            assert engine.submit([5, 9, 40, 0], options).result(GUARD_S).hypotheses == answer
        engine.submit([5, 9, 40, 0], DecodeOptions(beam_size=2)).result(GUARD_S)
        assert [mode.rows for mode in batches] == [4, 2]  # greedy had been empty for longest
        for options, answer in ((greedy, expected[0]), (beam, expected[1])):
            assert engine.submit([5, 9, 40, 0], options).result(GUARD_S).hypotheses == answer
        monkeypatch.setattr(sessions.memory._whole, "budget", 1000)
        with pytest.raises(FailedPreconditionError, match="lower max_tokens"):
            engine.submit([5, 9, 40, 0], DecodeOptions(beam_size=3)).result(GUARD_S)
        assert not batches
    finally:
        engine.close()


@pytest.mark.parametrize("options", OPTIONS[:2], ids=["greedy", "beam"])
def test_fp16_graphs_translate_as_fp32_ones(on_device: Path, options: DecodeOptions) -> None:
    """ONNX Runtime runs them on a CPU too, where an operator without a kernel of 16 bits gets casts around it."""
    sources = some_sources(40)
    expected = decode(opened(on_device, "full"), sources, [options])
    found = decode(opened(on_device, "full-fp16"), sources, [options])
    best = [(a[0][0], b[0][0]) for a, b in zip(expected, found, strict=True)]
    same = [one[0] == other[0] for one, other in best]
    assert np.mean(same) >= 0.8  # the model is random: where one token differs, all that follow do
    for (_, one, _), (_, other, _) in (pair for pair, equal in zip(best, same, strict=True) if equal):
        assert one == pytest.approx(other, abs=0.01)
    targets = [one[0] for one, _ in best]
    scores = [given_scores(opened(on_device, level), sources, targets) for level in ("full", "full-fp16")]
    np.testing.assert_allclose(scores[1], scores[0], atol=0.01)


def test_a_level_of_an_earlier_version_is_refused(lively_bundle: Path) -> None:
    manifest = read_manifest(lively_bundle)
    with pytest.raises(InvalidArtifactError, match=r"earlier version[\s\S]*Compile the bundle again"):
        LevelSessions.open(lively_bundle, manifest.architecture, manifest.level("h12"), Device("cuda"), 1)
