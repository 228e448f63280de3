"""Batches on a device that cannot begin or go on: their memory comes back, and the next batch of the mode works."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.scheduling.test_device_search import bits, decode, engine_of
from tests.serving.fakes import GUARD_S, eventually

from hmc.artifact.errors import FailedPreconditionError
from hmc.engine.decoding.constraints import Constraints
from hmc.engine.runtime.bound_steps import BoundStep
from hmc.engine.runtime.encoder import DeviceEncoder
from hmc.engine.runtime.memory.account import LevelMemory, Reservation
from hmc.engine.runtime.memory.mirrored import MirroredArrays
from hmc.engine.scheduling.engine import Engine
from hmc.serving import DecodeOptions

SOURCES: Sequence[list[int]] = [[5, 9, 14, 0], [20, 31, 0], [7, 7, 8, 50, 0]]
IN_GRAPH, ON_HOST = Constraints(), Constraints(prefix=(9,))
"""By where the search runs."""
REFUSED = [(IN_GRAPH, number) for number in range(1, 7)] + [(ON_HOST, number) for number in range(1, 4)]
"""Every reservation that a batch makes."""


@pytest.fixture
def engine(lively_device_bundle: Path) -> Any:
    running = engine_of(lively_device_bundle, max_rows=16)
    yield running
    running.close(drain=False)


@pytest.mark.parametrize(("constraints", "number"), REFUSED)
def test_a_batch_that_finds_too_little_memory_gives_back_what_it_had(
    constraints: Constraints, number: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `number`-th of its reservations is refused. Callers may keep the error for long."""
    reserve, asked = LevelMemory.reserve, list[str]()

    def refusing(self: LevelMemory, size: int, what: str) -> Reservation:
        asked.append(what)
        if len(asked) == number:
            raise self.refusal(size, what)
        return reserve(self, size, what)

    monkeypatch.setattr(LevelMemory, "reserve", refusing)
    kept = fail_together(engine, constraints)
    assert [type(each) for each in kept] == [FailedPreconditionError] * len(SOURCES)
    assert len(asked) == number
    eventually(lambda: engine.sessions.memory.reserved == 0)
    assert engine.pending == 0
    assert decode(engine, [(source, DecodeOptions()) for source in SOURCES])


@pytest.mark.parametrize("constraints", [IN_GRAPH, ON_HOST])
@pytest.mark.parametrize("place", [(DeviceEncoder, "encode"), (BoundStep, "run"), (MirroredArrays, "read")])
def test_a_batch_that_fails_anywhere_gives_its_memory_back_and_the_next_one_works(
    place: tuple[type, str], constraints: Constraints, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = DecodeOptions(n_best=4)
    before = [engine.submit(source, options, constraints).result(GUARD_S).hypotheses for source in SOURCES]
    with monkeypatch.context() as broken:
        broken.setattr(*place, raising)
        kept = fail_together(engine, constraints)
    assert {str(each) for each in kept} == {"decoding failed: a test breaks it"}
    eventually(lambda: engine.sessions.memory.reserved == 0)
    again = [engine.submit(source, options, constraints).result(GUARD_S).hypotheses for source in SOURCES]
    assert [bits(each) for each in again] == [bits(each) for each in before]


def raising(*_arguments: object, **_options: object) -> None:
    raise ValueError("a test breaks it")


def fail_together(engine: Engine, constraints: Constraints) -> list[BaseException | None]:
    """The errors of sentences of one batch."""
    with engine.queue.changed:
        futures = [engine.submit(source, DecodeOptions(), constraints) for source in SOURCES]
    return [future.exception(GUARD_S) for future in futures]
