"""Callbacks of callers delay no decoding step, and every future ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from functools import partial
from pathlib import Path

import pytest
from tests.serving.fakes import GUARD_S, eventually
from tests.serving.held_steps import HeldSteps
from tests.tiny import SENTENCES

from hmc.artifact import read_manifest
from hmc.engine.decoding.job import SentenceFuture
from hmc.engine.requests.results import Decoded
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.engine.scheduling.postprocessor import Postprocessor
from hmc.serving import DecodeOptions, Translator
from hmc.serving.text.codec import Codec

SOURCE = [5, 9, 40, 7, 0]
GREEDY = DecodeOptions(beam_size=1, max_length=20)


@pytest.fixture
def engine(lively_bundle: Path) -> Iterator[Engine]:
    manifest = read_manifest(lively_bundle)
    sessions = LevelSessions.open(lively_bundle, manifest.architecture, manifest.level("h12"), Device("cpu"), 1)
    running = Engine(sessions, queue_size=100, max_rows=8)
    yield running
    running.close(drain=False)


def test_an_answer_tells_once_that_it_was_cancelled() -> None:
    told: list[Future[object]] = []
    cancelled, ended = SentenceFuture(), SentenceFuture()
    for answer in (cancelled, ended):
        answer.on_cancel = told.append
    ended.set_result(1)
    assert [cancelled.cancel(), cancelled.cancel(), ended.cancel()] == [True, True, False]
    assert told == [cancelled]


def test_a_callback_that_blocks_holds_up_no_decoding(engine: Engine) -> None:
    blocked, go_on, order = threading.Event(), threading.Event(), list[int]()

    def block(_: Future[Decoded]) -> None:
        blocked.set()
        assert go_on.wait(GUARD_S)

    with engine.queue.changed:  # it does not end before it has the callback
        engine.submit(SOURCE, GREEDY).add_done_callback(block)
    assert blocked.wait(GUARD_S)
    futures = [engine.submit([*[9] * (n + 1), 0], GREEDY) for n in range(20)]
    for n, future in enumerate(futures):
        future.add_done_callback(lambda _, n=n: order.append(n))  # type: ignore[misc]  # a default argument
    eventually(lambda: engine.pending == 0)  # all are decoded
    assert not any(future.done() for future in futures)
    go_on.set()
    engine.close()
    assert sorted(order) == list(range(20))


def test_progress_is_reported_off_the_decode_thread_and_before_the_end(engine: Engine) -> None:
    threads, tokens = set[threading.Thread](), list[int]()

    def progress(ids: tuple[int, ...]) -> None:
        threads.add(threading.current_thread())
        tokens.append(len(ids))
        raise RuntimeError("gone")  # changes nothing

    options = DecodeOptions(beam_size=1, min_length=12, max_length=12)
    future = engine.submit(SOURCE, options, progress=progress)
    future.add_done_callback(lambda _: tokens.append(-1))
    assert future.result(GUARD_S).hypotheses
    engine.close()
    assert tokens[-1] == -1
    assert tokens[:11] == list(range(1, 12))
    assert not threads & {*engine.workers, threading.current_thread()}


def test_text_is_made_off_the_decode_thread(lively_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, translation = set[threading.Thread](), Codec.translation

    def noted(self: Codec, *arguments: object) -> object:
        threads.add(threading.current_thread())
        return translation(self, *arguments)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(Codec, "translation", noted)
    with Translator(lively_bundle, "h12", device="cpu", threads=1) as translator:
        assert translator.translate(SENTENCES, segmentation="none")
        assert threads
        engine = translator._engine
        assert isinstance(engine, Engine)
        assert not threads & {*engine.workers}


def test_closing_runs_every_callback_and_may_be_done_in_one(engine: Engine) -> None:
    go_on, closed, ran = threading.Event(), threading.Event(), list[int]()

    def close(_: Future[Decoded]) -> None:
        assert go_on.wait(GUARD_S)
        engine.close()
        closed.set()

    with engine.queue.changed:
        engine.submit(SOURCE, GREEDY).add_done_callback(close)
    futures = [engine.submit(SOURCE, GREEDY) for _ in range(10)]
    for future in futures:
        future.add_done_callback(lambda _: ran.append(1))
    go_on.set()
    assert closed.wait(GUARD_S)
    engine.close()
    assert len(ran) == 10
    assert not any(worker.is_alive() for worker in engine.workers)


def test_calls_run_in_order_and_errors_do_not_end_them() -> None:
    postprocessor, ran = Postprocessor(), list[int]()

    def call(n: int) -> None:
        ran.append(n)
        if n == 1:
            raise SystemExit

    for n in (0, 3):
        postprocessor.post([partial(call, n), partial(call, n + 1), partial(call, n + 2)])
    postprocessor.post([])
    postprocessor.post([partial(call, 6)])
    postprocessor.close()
    assert ran == list(range(7))


def test_waiting_ends_for_sentences_that_were_cancelled(engine: Engine, steps: HeldSteps) -> None:
    options = DecodeOptions(beam_size=4, min_length=60, max_length=60)
    steps.hold()
    with engine.queue.changed:  # the worker sees all of them at once
        futures = [engine.submit(SOURCE, options) for _ in range(6)]
    steps.wait()  # two run
    assert all(future.cancel() for future in futures)
    steps.release()
    assert not wait(futures, timeout=GUARD_S).not_done
    assert set(as_completed(futures, timeout=GUARD_S)) == set(futures)
    assert engine.submit(SOURCE, GREEDY).result(GUARD_S).hypotheses


def test_waiting_ends_for_texts_that_were_cancelled(lively_bundle: Path, steps: HeldSteps) -> None:
    options = DecodeOptions(beam_size=4, min_length=60, max_length=60)
    with Translator(lively_bundle, "h12", device="cpu", threads=1, max_rows=8) as translator:
        steps.hold()
        futures = [translator.submit(text, options) for text in SENTENCES * 2]
        steps.wait()
        waiting = threading.Event()
        found: list[int] = []

        def wait_for_one() -> None:
            waiting.set()
            found.append(len(wait(futures, GUARD_S, FIRST_COMPLETED).done))

        thread = threading.Thread(target=wait_for_one)
        thread.start()
        assert waiting.wait(GUARD_S)
        assert all(future.cancel() for future in futures)
        steps.release()
        thread.join(GUARD_S)
        assert found[0] > 0
        assert not wait(futures, timeout=GUARD_S).not_done


def test_closing_at_once_ends_waiting_for_all(lively_bundle: Path) -> None:
    translator = Translator(lively_bundle, "h12", device="cpu", threads=1, max_rows=8)
    options = DecodeOptions(beam_size=4, min_length=60, max_length=60)
    futures = [translator.submit(text, options) for text in SENTENCES * 4]
    translator.close(drain=False)
    assert not wait(futures, timeout=GUARD_S).not_done
