"""Whatever fails, every caller gets an answer or an error, and the level goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.scheduling.watched import before_admissions, before_steps
from tests.serving.fakes import GUARD_S, eventually
from tests.tiny import SENTENCES

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.artifact.errors import InternalServiceError
from hmc.engine.arrays import Arrays
from hmc.engine.requests.results import Decoded
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling import batch, worker
from hmc.engine.scheduling.budgets import TokenBudget
from hmc.engine.scheduling.engine import Engine, rows_of_worker
from hmc.engine.scheduling.policy import AdmissionPolicy
from hmc.engine.scheduling.postprocessor import Postprocessor
from hmc.serving import DecodeOptions, Sampling, Translator
from hmc.serving.text.codec import Codec

SOURCE, BROKEN = [5, 9, 40, 7, 0], [6, 6, 6, 6, 0]
PLAIN, GREEDY = DecodeOptions(max_length=20), DecodeOptions(beam_size=1, max_length=20)
SAMPLED = DecodeOptions(max_length=20, sampling=Sampling(seed=1))
CHECKED = [PLAIN, GREEDY, SAMPLED, DecodeOptions(n_best=4, max_length=20, coverage_penalty=0.5)]


# ---- one sentence ----


@pytest.mark.parametrize("options", CHECKED)
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_scores_that_are_not_finite_fail_the_sentence_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, options: DecodeOptions, number: float
) -> None:
    expected = engine.submit(SOURCE, options).result(GUARD_S).hypotheses
    encode = LevelSessions.encode

    def broken(self: LevelSessions, sources: Any) -> tuple[Arrays, Any]:
        cross, lengths = encode(self, sources)
        for index, source in enumerate(sources):
            if list(source) == BROKEN:
                for values in cross.values():
                    values[index] = number
        return cross, lengths

    monkeypatch.setattr(LevelSessions, "encode", broken)
    with engine.queue.changed:  # all run in one batch
        futures = [engine.submit(source, options) for source in (SOURCE, BROKEN, SOURCE)]
    with pytest.raises(InternalServiceError, match="not finite"):
        futures[1].result(GUARD_S)
    assert futures[0].result(GUARD_S).hypotheses == futures[2].result(GUARD_S).hypotheses == expected


@pytest.mark.parametrize("options", CHECKED)
@pytest.mark.parametrize("beside", [0, 1])
def test_a_shorter_sentence_in_the_place_of_a_failed_one_is_as_if_alone(
    lively_bundle: Path, monkeypatch: pytest.MonkeyPatch, options: DecodeOptions, beside: int
) -> None:
    """The encoder's output of the longer one is NaN. beside: sentences that keep the batch going meanwhile."""
    manifest = read_manifest(lively_bundle)
    opened = LevelSessions.open(lively_bundle, manifest.architecture, manifest.level("full"), Device("cpu"), 1)
    engine = Engine(opened, queue_size=100, max_rows=16)
    short, long, going = [5, 9, 0], [6] * 30 + [0], replace(options, min_length=19)
    expected = engine.submit(short, options).result(600).hypotheses
    expected_beside = engine.submit(SOURCE, going).result(600).hypotheses
    encode, encoded = LevelSessions.encode, threading.Semaphore(0)

    def broken(self: LevelSessions, sources: Any) -> tuple[Arrays, Any]:
        cross, lengths = encode(self, sources)
        for index in (index for index, source in enumerate(sources) if list(source) == long):
            for values in cross.values():
                values[index] = np.nan
        encoded.release()
        return cross, lengths

    monkeypatch.setattr(LevelSessions, "encode", broken)
    for _ in range(3):
        others = [engine.submit(SOURCE, going) for _ in range(beside)]
        assert not beside or encoded.acquire(timeout=600)
        with pytest.raises(InternalServiceError, match="not finite"):
            engine.submit(long, options).result(600)
        assert engine.submit(short, options).result(600).hypotheses == expected
        assert all(other.result(600).hypotheses == expected_beside for other in others)
    engine.close()


def test_an_error_while_text_is_made_reaches_the_caller(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("not UTF-8")

    with Translator(lively_bundle, "h12", device="cpu", threads=1) as translator:
        with monkeypatch.context() as patch:
            patch.setattr(Codec, "translation", fail)
            with pytest.raises(ValueError, match="not UTF-8"):
                translator.submit(SENTENCES[0], GREEDY).result(GUARD_S)
        assert translator.submit(SENTENCES[0], GREEDY).result(GUARD_S).target_tokens


# ---- a worker ----


def test_a_worker_that_stops_fails_what_it_has_and_restarts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = engine.submit(SOURCE, PLAIN).result(GUARD_S).hypotheses
    running, go_on = threading.Event(), threading.Event()
    step, holds_back = batch.HostBatch.step, AdmissionPolicy.holds_back

    def stand_still(self: batch.HostBatch, undisturbed: Callable[[], bool]) -> batch.Outcome:
        running.set()
        assert go_on.wait(GUARD_S)
        return step(self, undisturbed)

    def fail_once(self: AdmissionPolicy, *numbers: int) -> bool:
        if go_on.is_set():
            monkeypatch.setattr(AdmissionPolicy, "holds_back", holds_back)
            raise RuntimeError("boom")
        return holds_back(self, *numbers)

    monkeypatch.setattr(batch.HostBatch, "step", stand_still)
    monkeypatch.setattr(AdmissionPolicy, "holds_back", fail_once)
    futures = [engine.submit(SOURCE, DecodeOptions(beam_size=4, min_length=15, max_length=20))]
    assert running.wait(GUARD_S)
    futures += [engine.submit(SOURCE, options) for options in (PLAIN, GREEDY)]
    go_on.set()
    for future in futures:
        with pytest.raises(InternalServiceError, match=r"level 'h12' stopped unexpectedly and was restarted .*boom"):
            future.result(GUARD_S)
    eventually(lambda: engine.failure is None)  # it tests itself
    assert engine.submit(SOURCE, PLAIN).result(GUARD_S).hypotheses == expected
    assert engine.pending == 0


def test_a_failure_that_stays_is_reported_until_a_sentence_is_answered(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        patch.setattr(AdmissionPolicy, "holds_back", fail)
        for _ in range(3):
            with pytest.raises(InternalServiceError, match="boom"):
                engine.submit(SOURCE, GREEDY).result(GUARD_S)
        eventually(lambda: engine.pending == 0)
        assert engine.failure is not None
        assert "boom" in engine.failure
    assert engine.submit(SOURCE, GREEDY).result(GUARD_S).hypotheses
    assert engine.failure is None


def test_a_level_recovers_without_requests(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    holds_back, calls, recovered = AdmissionPolicy.holds_back, list[int](), threading.Event()

    def fail_three_times(self: AdmissionPolicy, *numbers: int) -> bool:
        calls.append(1)
        if len(calls) <= 3:
            raise RuntimeError("boom")
        recovered.set()
        return holds_back(self, *numbers)

    monkeypatch.setattr(worker, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(AdmissionPolicy, "holds_back", fail_three_times)
    with pytest.raises(InternalServiceError, match="boom"):
        engine.submit(SOURCE, PLAIN).result(GUARD_S)
    assert recovered.wait(GUARD_S)
    eventually(lambda: engine.failure is None)


def test_a_worker_restarts_although_the_queue_is_full_again(
    sessions: LevelSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds_back, post, submitted = AdmissionPolicy.holds_back, Postprocessor.post, list[Future[Decoded]]()
    engine = Engine(sessions, queue_size=1, max_rows=16)

    def fail_once(self: AdmissionPolicy, *_: int) -> bool:
        monkeypatch.setattr(AdmissionPolicy, "holds_back", holds_back)
        monkeypatch.setattr(Postprocessor, "post", post_and_submit)
        raise RuntimeError("boom")

    def post_and_submit(self: Postprocessor, calls: Sequence[Callable[[], object]]) -> None:
        """A caller takes the only place in the queue as soon as the restart has emptied it."""
        monkeypatch.setattr(Postprocessor, "post", post)
        post(self, calls)
        submitted.append(engine.submit(SOURCE, PLAIN))

    monkeypatch.setattr(AdmissionPolicy, "holds_back", fail_once)
    with pytest.raises(InternalServiceError, match="boom"):
        engine.submit(SOURCE, PLAIN).result(GUARD_S)
    engine.close()
    assert submitted[0].result(0).hypotheses
    assert engine.failure is None


def test_an_error_after_a_sentence_has_left_its_batch_does_not_lose_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, empty = engine.submit(SOURCE, PLAIN).result(GUARD_S).hypotheses, TokenBudget.empty

    def fail_once(*_: object) -> None:
        monkeypatch.setattr(TokenBudget, "empty", empty)
        raise RuntimeError("boom")

    monkeypatch.setattr(TokenBudget, "empty", fail_once)
    assert engine.submit(SOURCE, PLAIN).result(GUARD_S).hypotheses == expected


def test_the_log_says_where_a_batch_failed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_in_a_step(_: object) -> None:
        raise RuntimeError("boom")

    before_steps(monkeypatch, fail_in_a_step)
    with pytest.raises(RuntimeError, match="decoding failed: boom"):
        engine.submit(SOURCE, PLAIN).result(GUARD_S)
    assert "a batch of level h12 failed" in caplog.text
    assert "fail_in_a_step" in caplog.text  # the traceback


@pytest.mark.parametrize("how", ["error", "not finite"])
def test_a_level_that_fails_every_sentence_has_failed_until_it_answers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    encode, calls = LevelSessions.encode, list[int]()
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(worker, pause, GUARD_S)

    def broken(self: LevelSessions, sources: Any) -> tuple[Arrays, Any]:
        calls.append(1)
        if how == "error":
            raise RuntimeError("boom")
        cross, lengths = encode(self, sources)
        for values in cross.values():
            values[:] = np.nan
        return cross, lengths

    before = engine.work.total
    with monkeypatch.context() as patch:
        patch.setattr(LevelSessions, "encode", broken)
        for count in range(worker.FAILURES):
            assert engine.failure is None, count
            with pytest.raises((RuntimeError, InternalServiceError), match=r"boom|not finite"):
                engine.submit(SOURCE, GREEDY).result(GUARD_S)
        eventually(lambda: engine.failure is not None and len(calls) > worker.FAILURES)  # it tests itself
        assert "in a row; the log says why" in str(engine.failure)
    eventually(lambda: engine.work.total.failed - before.failed == len(calls))
    assert engine.work.total.done == before.done
    assert engine.submit(SOURCE, GREEDY).result(GUARD_S).hypotheses
    assert engine.failure is None


def test_of_several_workers_that_all_fail_one_tries_what_comes(
    sessions: LevelSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are refused at once, and not after the pauses of workers that have given up."""
    for pause in ("FIRST_PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(worker, pause, 10 * GUARD_S)

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    engine = Engine(sessions, queue_size=100, max_rows=16, workers=2)
    with monkeypatch.context() as patch:
        patch.setattr(LevelSessions, "encode", broken)
        for _ in range(12):
            with pytest.raises(RuntimeError, match="boom"):
                engine.submit(SOURCE, GREEDY).result(GUARD_S)
        assert engine.queue.failure
    assert engine.submit(SOURCE, GREEDY).result(GUARD_S).hypotheses
    assert engine.failure is None
    engine.close()


# ---- closing ----


def test_closing_at_once_cancels_sentences_that_are_being_admitted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitting, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        admitting.set()
        assert go_on.wait(GUARD_S)

    before_admissions(monkeypatch, slow)
    future = engine.submit(SOURCE, DecodeOptions(beam_size=4, min_length=60, max_length=60))
    assert admitting.wait(GUARD_S)
    closing = threading.Thread(target=engine.close, kwargs={"drain": False})
    future.add_done_callback(lambda _: go_on.set())  # at once, or not before the end
    closing.start()
    assert go_on.wait(GUARD_S)
    closing.join(GUARD_S)
    assert future.cancelled()
    assert not closing.is_alive()


def test_closing_at_once_while_batches_come_and_go(sessions: LevelSessions) -> None:
    options = [DecodeOptions(beam_size=1 + n % 7, max_length=3) for n in range(7)]
    for _ in range(20):
        engine = Engine(sessions, queue_size=1000, max_rows=16)
        futures = [engine.submit(SOURCE, options[n % 7]) for n in range(60)]
        futures[5].result(GUARD_S)
        engine.close(drain=False)
        assert all(future.done() for future in futures)


# ---- settings ----


@pytest.mark.parametrize(
    ("max_rows", "workers", "message"),
    [
        (128, 64, "workers 64: .* 2 rows to each.* needs 4; choose at most 32 workers, or max_rows 256 or more"),
        (8, 4, "choose at most 2 workers, or max_rows 16"),
        (3, 3, "choose at most 1 worker, or max_rows 12"),
    ],
)
def test_more_workers_than_the_default_beam_fits_are_refused_at_the_start(
    tiny_bundle: Path, max_rows: int, workers: int, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Translator(tiny_bundle, "h5", device="cpu", max_rows=max_rows, workers=workers)


@pytest.mark.parametrize(("max_rows", "workers", "rows"), [(128, 32, 4), (13, 4, 4), (3, 1, 3), (1, 2, 1)])
def test_rows_of_a_worker(max_rows: int, workers: int, rows: int) -> None:
    assert rows_of_worker(max_rows, workers) == rows
