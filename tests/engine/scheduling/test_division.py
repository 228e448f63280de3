"""How cores are divided among workers: chosen by what is measured, and remembered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hmc.artifact import Level, validate
from hmc.engine.runtime.device import resolve_device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling import division
from hmc.engine.scheduling.division import Division, given_division, measured_division
from hmc.serving import Translator

CORES = 4
SLOW_TOGETHER = {1: (1.0, 8.0), 2: (1.0, 7.0), 0: (1.0, 6.0)}
"""Threads → seconds of a lone step and of a full one: of a model to which further threads bring little."""
FAST_TOGETHER = {1: (4.0, 32.0), 2: (2.0, 16.0), 0: (1.0, 8.0)}
"""Of a model to which every thread brings its share: rows take as long in any division, a lone sentence does not."""
EQUAL = {1: (1.0, 8.0), 2: (1.0, 4.0), 0: (1.0, 2.05)}
"""Of a model for which all divisions are about as good."""


class Opened:
    """Opens the tiny bundle's sessions, and remembers for which divisions."""

    def __init__(self, bundle: Path) -> None:
        self.bundle, self.manifest = bundle, validate(bundle)
        self.level: Level = self.manifest.level("full-int8")
        self.divisions: list[Division] = []
        self._threads: dict[int, int] = {}

    def __call__(self, asked: Division) -> LevelSessions:
        self.divisions.append(asked)
        device = resolve_device("cpu", self.level)
        sessions = LevelSessions.open(self.bundle, self.manifest.architecture, self.level, device, 1)
        self._threads[id(sessions)] = asked.threads
        return sessions

    def timed_as(self, seconds: dict[int, tuple[float, float]]) -> Callable[[LevelSessions, int], float]:
        """Stands for a measurement."""
        return lambda sessions, rows: seconds[self._threads[id(sessions)]][rows > 1]


@pytest.fixture
def opened(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    monkeypatch.setattr(division, "cores", lambda: CORES)
    return Opened(tiny_bundle)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [(SLOW_TOGETHER, Division(4, 1)), (FAST_TOGETHER, Division(1, 0)), (EQUAL, Division(1, 0))],
    ids=["slow together", "fast together", "equal"],
)
def test_the_division_that_costs_least(
    seconds: dict[int, tuple[float, float]], best: Division, opened: Opened, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(division, "_step_seconds", opened.timed_as(seconds))
    assert measured_division(opened.level, opened, tmp_path, 128) == best
    assert opened.divisions == [Division(1, 1), Division(1, 2), Division(1, 0)]


def test_it_is_remembered_for_the_level_and_the_cores(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "_step_seconds", opened.timed_as(SLOW_TOGETHER))
    first = measured_division(opened.level, opened, tmp_path, 128)
    monkeypatch.setattr(division, "_step_seconds", opened.timed_as(FAST_TOGETHER))
    assert measured_division(opened.level, opened, tmp_path, 128) == first
    assert len(opened.divisions) == 3
    other = opened.manifest.level("h5-int8")
    assert measured_division(other, opened, tmp_path, 128) == Division(1, 0)
    monkeypatch.setattr(division, "cores", lambda: 2)
    assert measured_division(opened.level, opened, tmp_path, 128) == Division(1, 0)
    assert len(opened.divisions) == 3 + 3 + 2


@pytest.mark.parametrize("content", ["", "[1, 2]", '{"workers": 77, "threads": 1}', '{"workers": 4}'])
def test_what_is_remembered_wrongly_is_measured_again(
    content: str, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "_step_seconds", opened.timed_as(SLOW_TOGETHER))
    measured_division(opened.level, opened, tmp_path, 128)
    (remembered,) = tmp_path.rglob(f"{division.FOLDER}/*.json")
    remembered.write_text(content, encoding="utf-8")
    assert measured_division(opened.level, opened, tmp_path, 128) == Division(4, 1)
    assert len(opened.divisions) == 6


def test_each_worker_has_rows_for_the_largest_beam(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "_step_seconds", opened.timed_as(SLOW_TOGETHER))
    assert measured_division(opened.level, opened, tmp_path, 32) == Division(2, 2)
    assert measured_division(opened.level, opened, tmp_path / "few", 16) == Division(1, 0)
    assert opened.divisions == [Division(1, 2), Division(1, 0)]  # with 16 rows there is nothing to choose


def test_a_real_measurement(opened: Opened, tmp_path: Path) -> None:
    found = measured_division(opened.level, opened, tmp_path, 128)
    assert found in (Division(4, 1), Division(2, 2), Division(1, 0))


def test_what_is_given_is_not_measured() -> None:
    assert given_division(0, 0) == Division(1, 0)
    assert given_division(3, 0) == Division(1, 3)
    assert given_division(0, 2) == Division(2, 0)


@pytest.mark.parametrize(("threads", "workers", "expected"), [(0, 0, 4), (0, 1, 1), (1, 0, 1), (0, 3, 3)])
def test_a_translator_divides_as_measured_unless_it_is_told(
    threads: int, workers: int, expected: int, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "cores", lambda: CORES)
    monkeypatch.setattr(division, "_costs", lambda opened: {each: float(each.threads or CORES) for each in opened})
    with Translator(tiny_bundle, "h5", threads=threads, workers=workers, cache=tmp_path) as translator:
        assert translator.work.workers == expected
        assert translator.translate(["A man is standing on a ladder."])[0].text is not None
    assert bool(list(tmp_path.rglob(f"{division.FOLDER}/*.json"))) == (expected == CORES)
