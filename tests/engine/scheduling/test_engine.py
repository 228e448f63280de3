"""The engine when a batch fails, its queue, and the cost of decoder variants to sentences that do not use them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.engine.scheduling.watched import before_admissions, before_steps
from tests.serving.fakes import GUARD_S, FakeClock, eventually

from hmc.artifact import read_manifest
from hmc.artifact.bundle.manifest import VARIANTS
from hmc.artifact.errors import OverloadedError, UnavailableError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.decoding.job import EncodedSentence
from hmc.engine.decoding.sampling import GREATEST, uniforms
from hmc.engine.requests.caller import Priority
from hmc.engine.requests.work import BatchLoad
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling import planning
from hmc.engine.scheduling.batch import HostBatch
from hmc.engine.scheduling.budgets import IDLE_S
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions, Sampling

SOURCE = [5, 9, 40, 7, 0]
PLAIN, GREEDY = DecodeOptions(max_length=20), DecodeOptions(beam_size=1, max_length=20)
SAMPLED = DecodeOptions(max_length=20, sampling=Sampling(seed=1))


@pytest.fixture
def engine(sessions: LevelSessions) -> Iterator[Engine]:
    running = Engine(sessions, queue_size=100, max_rows=64)
    yield running
    running.close(drain=False)


def test_variants_are_opened_when_they_are_needed(engine: Engine) -> None:
    engine.submit(SOURCE, PLAIN).result()
    assert set(engine.sessions.decoders) == {None}
    engine.submit(SOURCE, SAMPLED).result()
    assert set(engine.sessions.decoders) == {None, "sampling"}


def test_a_batch_that_fails_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.submit(SOURCE, PLAIN).result().hypotheses

    def fail(batch: HostBatch) -> None:
        if batch.mode.variant == "sampling" and batch.state.lengths.max() > 2:
            raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        before_steps(patch, fail)
        futures = [engine.submit(SOURCE, options) for options in (PLAIN, SAMPLED, GREEDY, PLAIN)]
        with pytest.raises(RuntimeError, match="decoding failed: broken"):
            futures.pop(1).result()
        assert [f.result().hypotheses[0].ids for f in (futures[0], futures[2])] == [expected[0].ids] * 2
    assert engine.submit(SOURCE, SAMPLED).result().hypotheses


def test_sentences_that_cannot_be_admitted_fail_and_the_others_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(batch: HostBatch, _: object) -> None:
        if batch.mode.rows == 1:
            raise MemoryError("out of memory")

    before_admissions(monkeypatch, fail)
    futures = [engine.submit(SOURCE, options) for options in (GREEDY, PLAIN, SAMPLED, PLAIN)]
    for index, future in enumerate(futures):
        if index in (0, 2):
            with pytest.raises(RuntimeError, match="out of memory"):
                future.result(timeout=GUARD_S)
        else:
            assert future.result(timeout=GUARD_S).hypotheses


def test_the_plain_graph_does_not_pay_for_its_variants(lively_bundle: Path) -> None:
    def kinds(name: str) -> set[str]:
        model = onnx.load(str(lively_bundle / "full" / f"{name}.onnx"), load_external_data=False)
        return {node.op_type for node in model.graph.node}

    plain, attention, sampling = (kinds(n) for n in ("decoder", "decoder_attention", "decoder_sampling"))
    assert not plain & {"ScatterElements", "CumSum", "Softmax", "MatMul"}
    assert {"ScatterElements", "Softmax"} <= attention
    assert {"ScatterElements", "CumSum"} <= sampling


def test_variants_share_every_weight_with_the_plain_graph(lively_bundle: Path) -> None:
    def weights(name: str) -> set[str]:
        model = onnx.load(str(lively_bundle / "h12-int8" / f"{name}.onnx"), load_external_data=False)
        return {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}

    level = read_manifest(lively_bundle).level("h12-int8")
    for variant in VARIANTS:
        assert weights(f"decoder_{variant}") == weights("decoder")
        assert f"h12-int8/decoder_{variant}.onnx" in level.files


def test_random_numbers_do_not_depend_on_the_limit() -> None:
    few, many = (uniforms(Sampling(seed=9), 3, steps) for steps in (5, 50))
    np.testing.assert_array_equal(few, many[:, :5])
    assert len(np.unique(many)) == many.size


@pytest.mark.parametrize("extreme", [0.0, float(GREATEST)])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_the_extreme_random_numbers_draw_tokens_that_may_be_drawn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, extreme: float, top_p: float
) -> None:
    monkeypatch.setattr(planning, "uniforms", lambda _, rows, steps: np.full((rows, steps), extreme, np.float32))
    sampling = Sampling(temperature=0.7, top_p=top_p)
    options = DecodeOptions(n_best=4, max_length=20, min_length=8, sampling=sampling)
    futures = [engine.submit([*SOURCE[n:], *SOURCE], options) for n in range(5)]
    for hypothesis in (h for f in futures for h in f.result().hypotheses):
        assert len(hypothesis.ids) >= 7
        assert not {0, 2} & set(hypothesis.ids)  # EOS and pad
        assert all(0 <= i < 120 for i in hypothesis.ids)
        assert np.isfinite(hypothesis.token_scores).all()


def test_caches_are_freed_when_no_sentence_comes(sessions: LevelSessions) -> None:
    clock = FakeClock()
    engine = Engine(sessions, queue_size=100, max_rows=64, clock=clock)
    found = engine.submit(SOURCE, PLAIN).result().hypotheses
    (running,) = engine.workers[0]._batches.values()
    assert isinstance(running, HostBatch)
    caches = weakref.ref(running.caches)
    del running
    clock.now += IDLE_S
    with engine.queue.changed:
        engine.queue.changed.notify_all()
    eventually(lambda: not engine.workers[0]._batches)
    gc.collect()
    assert caches() is None
    assert engine.submit(SOURCE, PLAIN).result().hypotheses == found
    engine.close()


@pytest.fixture
def busy(sessions: LevelSessions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine whose queue of four sentences stays as it is: a sentence whose step does not return has all rows."""
    go_on = threading.Event()
    before_steps(monkeypatch, lambda _: go_on.wait(GUARD_S))
    running = Engine(sessions, queue_size=4, max_rows=4)
    running.submit(SOURCE, PLAIN)
    eventually(lambda: not len(running.queue))
    yield running
    go_on.set()
    running.close(drain=False)


def test_its_load_is_the_batches_that_run_and_the_sentences_that_wait(busy: Engine) -> None:
    for priority in (Priority.INTERACTIVE, Priority.BULK):
        busy.submit(SOURCE, GREEDY, priority=priority)
    load = busy.work
    assert load.batches == (BatchLoad(worker=0, sentences=1, rows=PLAIN.rows, interactive=True),)
    assert (load.waiting, load.queue_size, load.workers, load.max_rows) == (2, 4, 1, 4)


def test_cancelled_sentences_leave_the_queue_at_once(busy: Engine) -> None:
    for _ in range(3):
        futures = [busy.submit(SOURCE, GREEDY) for _ in range(4)]
        with pytest.raises(OverloadedError, match="queue of 4 sentences is full"):
            busy.submit(SOURCE, GREEDY)
        assert busy.pending == 5
        assert all(future.cancel() for future in futures)
        assert busy.pending == 1


def test_bulk_leaves_half_of_the_queue_to_others(busy: Engine) -> None:
    calls: list[str] = []
    busy.queue.call_when_space(lambda: calls.append("at once"))
    bulk = [busy.submit(SOURCE, GREEDY, priority=Priority.BULK) for _ in range(2)]
    with pytest.raises(OverloadedError):
        busy.submit(SOURCE, GREEDY, priority=Priority.BULK)
    others = [busy.submit(SOURCE, GREEDY) for _ in range(2)]
    busy.queue.call_when_space(lambda: calls.append("space"))
    others[0].cancel()
    bulk[0].cancel()
    assert calls == ["at once"]
    others[1].cancel()
    assert calls == ["at once", "space"]
    busy.submit(SOURCE, GREEDY, priority=Priority.BULK)
    with pytest.raises(OverloadedError):
        busy.submit(SOURCE, GREEDY, priority=Priority.BULK)


def test_a_call_that_waits_for_space_is_made_when_there_is_some_or_at_the_end(engine: Engine) -> None:
    engine.queue.bulk_size = 0
    ended = threading.Event()
    engine.queue.call_when_space(ended.set)
    engine.submit(SOURCE, PLAIN).result()
    assert not ended.is_set()
    engine.queue.bulk_size = 1
    engine.submit(SOURCE, PLAIN).result()
    assert ended.wait(GUARD_S)
    engine.queue.bulk_size = 0
    ended.clear()
    engine.queue.call_when_space(ended.set)
    engine.close()
    assert ended.is_set()
    with pytest.raises(UnavailableError, match="shutting down"):
        engine.submit(SOURCE, PLAIN, priority=Priority.BULK)


def test_sentences_that_are_queued_together_are_as_if_alone(engine: Engine) -> None:
    """Of several lengths, with and without constraints, with options that are planned for each and for all."""
    sources = [[*range(5, 5 + length), 0] for length in (1, 3, 3, 8)]
    prefixed = Constraints((7, 9))
    for options in (PLAIN, GREEDY, SAMPLED, DecodeOptions(max_length=20, alignment=True)):
        planner = engine.planner(options)
        sentences = [EncodedSentence(source) for source in sources]
        sentences.append(EncodedSentence(SOURCE, prefixed))
        sentences.append(EncodedSentence(SOURCE, finish=lambda found: len(found.hypotheses)))
        together = engine.submit_all([planner.job(sentence) for sentence in sentences])
        for sentence, future in zip(sentences[:-1], together, strict=False):
            alone = engine.submit(sentence.source, options, sentence.constraints)
            assert future.result(GUARD_S).hypotheses == alone.result(GUARD_S).hypotheses
        assert together[-1].result(GUARD_S) == options.n_best
    assert engine.submit_all([]) == []


def test_sentences_that_find_no_room_together_leave_the_queue(busy: Engine) -> None:
    waiting = busy.pending
    planner = busy.planner(PLAIN)
    room = busy.queue.size - len(busy.queue)
    jobs = [planner.job(EncodedSentence(SOURCE)) for _ in range(room + 1 + busy.queue.size)]
    with pytest.raises(OverloadedError):
        busy.submit_all(jobs)
    assert all(job.future.cancelled() for job in jobs[:room])
    assert busy.pending == waiting
