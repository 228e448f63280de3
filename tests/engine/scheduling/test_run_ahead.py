"""Greedy search runs several steps at once: translations do not depend on how many, and new sentences do not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.scheduling.watched import before_admissions
from tests.serving.fakes import GUARD_S

from hmc.artifact import read_manifest
from hmc.engine.caches.host import HostCaches
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.requests.results import DecodedHypothesis
from hmc.engine.runtime.device import Device
from hmc.engine.runtime.sessions import LevelSessions
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions

Open = Callable[[Path, str], Engine]


@pytest.fixture
def opened() -> Iterator[Open]:
    engines: list[Engine] = []

    def start(bundle: Path, level: str) -> Engine:
        manifest = read_manifest(bundle)
        found = LevelSessions.open(bundle, manifest.architecture, manifest.level(level), Device("cpu"), 1)
        engines.append(Engine(found, queue_size=500, max_rows=8))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close(drain=False)


@pytest.fixture
def further(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows at every step that `run_ahead` adds."""
    rows: list[int] = []
    run_next = HostCaches.run_next

    def noted(self: HostCaches, tokens: Any) -> Any:
        rows.append(len(tokens))
        return run_next(self, tokens)

    monkeypatch.setattr(HostCaches, "run_next", noted)
    return rows


def requests() -> list[tuple[list[int], DecodeOptions, Constraints]]:
    """Some have limits, least lengths, prefixes or bans; long ones need more memory than caches have at first."""
    rng = np.random.default_rng(5)
    found = []
    for n in range(60):
        source = [*rng.integers(3, 120, rng.integers(1, 20)).tolist(), 0]
        shortest = int(rng.integers(20, 60)) if n % 6 else 1
        options = DecodeOptions(beam_size=1, min_length=shortest, max_length=shortest + int(rng.integers(0, 30)))
        prefix = (7, 9) if n % 20 == 3 and (options.max_length or 0) > 2 else ()
        found.append((source, options, Constraints(prefix, no_repeat_ngram_size=2 if n % 15 == 5 else 0)))
    return found


@pytest.mark.parametrize("level", ["full", "h12-int8", "full-int8-shortlist"])
def test_what_is_found_does_not_depend_on_it(
    level: str, lively_bundle: Path, listed_bundle: Path, opened: Open, further: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    engine = opened(listed_bundle if "shortlist" in level else lively_bundle, level)

    def decode(*, alone: bool) -> list[tuple[DecodedHypothesis, ...]]:
        futures = []
        for source, options, constraints in requests():
            futures.append(engine.submit(source, options, constraints))
            if alone:
                wait(futures)
        return [future.result().hypotheses for future in futures]

    whole: Any = HostCaches.__dict__["steps_ahead"]

    def at_most(count: int) -> None:
        monkeypatch.setattr(HostCaches, "steps_ahead", property(lambda caches: min(count, whole.fget(caches))))

    at_most(0)
    expected = decode(alone=False)
    assert not further
    for most in (1, 3, 1000):
        at_most(most)
        for alone in (False, True):
            further.clear()
            assert decode(alone=alone) == expected
            assert len(further) > 5


def test_a_later_sentence_starts_at_the_next_step(
    lively_bundle: Path, opened: Open, further: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, begun = opened(lively_bundle, "full-int8"), threading.Event()
    admitted: list[tuple[int, int]] = []
    run_next = HostCaches.run_next

    def slow(self: HostCaches, tokens: Any) -> Any:
        if len(further) == 3 and not begun.is_set():
            begun.set()
            with engine.queue.changed:
                assert engine.queue.changed.wait_for(lambda: len(engine.queue), GUARD_S)
        return run_next(self, tokens)

    before_admissions(monkeypatch, lambda _, jobs: admitted.append((len(jobs), len(further))))
    monkeypatch.setattr(HostCaches, "run_next", slow)
    long = engine.submit([5, 6, 7, 0], DecodeOptions(beam_size=1, min_length=80, max_length=80))
    assert begun.wait(GUARD_S)
    ended: list[str] = []
    long.add_done_callback(lambda _: ended.append("long"))
    with engine.queue.changed:  # it does not end before it has the callback
        short = engine.submit([5, 6, 7, 8, 0], DecodeOptions(beam_size=1, max_length=2))
        short.add_done_callback(lambda _: ended.append("short"))
    assert short.result().hypotheses
    assert [count for count, _ in admitted] == [1, 1]
    assert admitted[1][1] <= 4
    assert len(long.result().hypotheses[0].ids) >= 79
    engine.close()
    assert ended == ["short", "long"]


def test_progress_gets_every_token(lively_bundle: Path, opened: Open, further: list[int]) -> None:
    reported: list[tuple[int, ...]] = []
    options = DecodeOptions(beam_size=1, min_length=20, max_length=20)
    future = opened(lively_bundle, "full-int8").submit([5, 6, 7, 0], options, progress=reported.append)
    future.result()
    assert [len(tokens) for tokens in reported][:19] == list(range(1, 20))
    assert not further


def test_a_cancelled_sentence_leaves_at_the_next_step(
    lively_bundle: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(lively_bundle, "full-int8")
    rows: list[int] = []
    options = DecodeOptions(beam_size=1, max_length=60)
    expected = [engine.submit([n + 5, 8, 7, 0], options).result().hypotheses for n in range(6)]
    begun, cancelled, run_next = threading.Event(), threading.Event(), HostCaches.run_next

    def slow(self: HostCaches, tokens: Any) -> Any:
        rows.append(len(tokens))
        begun.set()
        assert cancelled.wait(GUARD_S)
        return run_next(self, tokens)

    monkeypatch.setattr(HostCaches, "run_next", slow)
    with engine.queue.changed:  # all are there before the first is admitted
        futures = [engine.submit([n + 5, 8, 7, 0], options) for n in range(6)]
    assert begun.wait(GUARD_S)
    longest = max(range(6), key=lambda n: len(expected[n][0].ids))
    assert futures[longest].cancel()
    cancelled.set()
    assert all(f.result().hypotheses == expected[n] for n, f in enumerate(futures) if n != longest)
    assert max(rows[1:], default=0) < rows[0]
