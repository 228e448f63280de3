"""Several workers of one level: the same answers, work shared, nothing lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.scheduling.watched import before_admissions
from tests.serving.fakes import GUARD_S

from hmc.artifact import InvalidRequestError, read_manifest
from hmc.engine.decoding.job import Job
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions, Sampling, Translator

OPTIONS = (
    DecodeOptions(max_length=20),
    DecodeOptions(beam_size=1, max_length=20),
    DecodeOptions(max_length=20, sampling=Sampling(seed=1)),
)


def sources(count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[*rng.integers(3, 60, size=rng.integers(2, 12)).tolist(), 0] for _ in range(count)]


def decoded(engine: Engine, options: DecodeOptions) -> list[Any]:
    """The hypotheses of 40 sentences that are in the queue together."""
    return [future.result().hypotheses for future in [engine.submit(ids, options) for ids in sources(40)]]


@pytest.fixture
def sessions(lively_bundle: Path) -> LevelSessions:
    manifest = read_manifest(lively_bundle)
    level = manifest.level("full-int8")
    return LevelSessions.open(lively_bundle, manifest.architecture, level, Device("cpu"), 0, workers=3)


@pytest.fixture
def engine(sessions: LevelSessions) -> Iterator[Engine]:
    running = Engine(sessions, queue_size=100, max_rows=64, workers=3)
    yield running
    running.close(drain=False)


@pytest.mark.parametrize("options", OPTIONS)
def test_workers_change_no_translation(sessions: LevelSessions, engine: Engine, options: DecodeOptions) -> None:
    alone = Engine(sessions, queue_size=100, max_rows=64)
    expected = decoded(alone, options)
    alone.close()
    assert decoded(engine, options) == expected
    assert engine.pending == 0


def test_sentences_are_shared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, taken = threading.Barrier(3, timeout=600), list[int]()

    def meet(_: object, jobs: list[Job]) -> None:
        taken.append(len(jobs))
        if len(taken) <= 3:
            meeting.wait()  # broken unless three workers have work at the same time

    before_admissions(monkeypatch, meet)
    futures = [engine.submit(ids, OPTIONS[1]) for ids in sources(30)]
    assert all(future.result(timeout=GUARD_S).hypotheses for future in futures)
    assert sum(taken) == 30


def test_closing_ends_what_every_worker_has(engine: Engine) -> None:
    futures = [engine.submit(ids, DecodeOptions(beam_size=4, max_length=60, min_length=60)) for ids in sources(60)]
    engine.close(drain=False)
    assert all(future.done() for future in futures)
    assert not any(worker.is_alive() for worker in engine.workers)


def test_a_request_must_fit_one_worker(sessions: LevelSessions) -> None:
    engine = Engine(sessions, queue_size=100, max_rows=24, workers=3)
    with pytest.raises(InvalidRequestError, match="beam_size 9: this server runs at most 8 rows together"):
        engine.submit([5, 0], DecodeOptions(beam_size=9))
    engine.close()


def test_workers_that_cannot_be(sessions: LevelSessions, lively_bundle: Path) -> None:
    with pytest.raises(InvalidRequestError, match="workers -1: choose 0"):
        Translator(lively_bundle, workers=-1)
    sessions.device = Device("cuda")
    with pytest.raises(InvalidRequestError, match="workers 2: on cuda:0 a level has one"):
        Engine(sessions, queue_size=1, max_rows=8, workers=2)
