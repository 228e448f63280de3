"""Replicas of a level behind one queue, here two on this machine's CPU: the same answers, work for both, and each
can be warmed up alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.scheduling.test_workers import decoded, sources
from tests.engine.scheduling.watched import before_admissions
from tests.serving.fakes import GUARD_S

from hmc.artifact import InvalidArtifactError, InvalidRequestError, read_manifest
from hmc.engine.decoding.job import Mode
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.batch import HostBatch
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions

GREEDY, BEAM = DecodeOptions(beam_size=1, max_length=20), DecodeOptions(max_length=20)


@pytest.fixture
def replicas(lively_bundle: Path) -> list[LevelSessions]:
    manifest = read_manifest(lively_bundle)
    level = manifest.level("h12")
    return [LevelSessions.open(lively_bundle, manifest.architecture, level, Device("cpu"), 1) for _ in range(2)]


@pytest.fixture
def engine(replicas: list[LevelSessions]) -> Iterator[Engine]:
    running = Engine(replicas, queue_size=100, max_rows=16)
    yield running
    running.close(drain=False)


@pytest.fixture
def ran_on(monkeypatch: pytest.MonkeyPatch) -> list[tuple[LevelSessions, Mode]]:
    """Which replica admitted sentences, and of which mode, in their order."""
    seen: list[tuple[LevelSessions, Mode]] = []
    before_admissions(monkeypatch, lambda batch, _: seen.append((batch.sessions, batch.mode)))
    return seen


@pytest.mark.parametrize("options", [GREEDY, BEAM])
def test_replicas_change_no_translation(replicas: list[LevelSessions], engine: Engine, options: DecodeOptions) -> None:
    alone = Engine(replicas[0], queue_size=100, max_rows=16)
    expected = decoded(alone, options)
    alone.close()
    assert decoded(engine, options) == expected


def test_both_devices_work_at_the_same_time(
    replicas: list[LevelSessions], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, met = threading.Barrier(2, timeout=600), list[LevelSessions]()

    def meet(batch: HostBatch, _: object) -> None:
        if batch.sessions not in met:
            met.append(batch.sessions)
            meeting.wait()  # broken unless both have work at the same time

    before_admissions(monkeypatch, meet)
    futures = [engine.submit(ids, GREEDY) for ids in sources(30)]
    assert all(future.result(timeout=GUARD_S).hypotheses for future in futures)
    assert len(met) == 2
    assert all(replica in met for replica in replicas)


def test_each_device_has_all_rows(engine: Engine) -> None:
    assert [scheduler.max_rows for scheduler in engine._schedulers] == [16, 16]


def test_one_replica_can_be_used_alone(
    replicas: list[LevelSessions], engine: Engine, ran_on: list[tuple[LevelSessions, Mode]]
) -> None:
    for replica in replicas:
        ran_on.clear()
        with engine.only(replica):
            futures = [engine.submit(ids, GREEDY) for ids in sources(40)]
            assert all(future.result(timeout=GUARD_S).hypotheses for future in futures)
        assert {id(sessions) for sessions, _ in ran_on} == {id(replica)}


def test_warming_up_reaches_every_replica(
    replicas: list[LevelSessions], engine: Engine, ran_on: list[tuple[LevelSessions, Mode]]
) -> None:
    engine.warm_up()
    for replica in replicas:
        assert {mode.rows for sessions, mode in ran_on if sessions is replica} == {1, 4}
        assert "greedy" in replica.decoders


def test_a_variant_opens_on_every_replica(replicas: list[LevelSessions], engine: Engine) -> None:
    options = DecodeOptions(beam_size=1, max_length=10, alignment=True)
    assert engine.submit(sources(1)[0], options).result(timeout=GUARD_S).hypotheses
    assert all("attention" in replica.decoders for replica in replicas)


def test_a_variant_that_fails_on_one_replica_is_an_error(
    replicas: list[LevelSessions], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object = None) -> None:
        raise InvalidArtifactError("device 2", ["broken"], "")

    monkeypatch.setattr(replicas[1], "decoder", fail)
    options = DecodeOptions(beam_size=1, max_length=10, alignment=True)
    with pytest.raises(InvalidArtifactError, match="device 2 cannot be used"):
        engine.submit(sources(1)[0], options).result(timeout=GUARD_S)


def test_a_closed_engine_ends_while_a_replica_is_paused(replicas: list[LevelSessions], engine: Engine) -> None:
    with engine.only(replicas[0]):
        futures = [engine.submit(ids, BEAM) for ids in sources(20)]
        engine.close()
    assert all(future.result().hypotheses for future in futures)
    assert not any(worker.is_alive() for worker in engine.workers)


def test_several_workers_need_cpus(replicas: list[LevelSessions]) -> None:
    for replica in replicas:
        replica.device = Device("cuda", 1)
    with pytest.raises(InvalidRequestError, match="workers 2: on cuda:1 a level has one"):
        Engine(replicas, queue_size=1, max_rows=8, workers=2)
