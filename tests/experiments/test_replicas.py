"""Two servers behind one name: one is killed under load, a third joins, the other drains. No call fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from experiments.load.replicas import HOSTS, Ended, Phase, run

from hmc.artifact.errors import UnavailableError

CALLS, CALLERS = 60, 4
"""Calls in each phase, and how many are under way at a time."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux answers at 127.0.0.2 without being set up")
def test_servers_come_and_go_without_a_failed_call(tiny_bundle: Path) -> None:
    level = ("--default-level", "h5-int8", "--levels", "h5-int8")
    two, killed, joined, drained = run(tiny_bundle, CALLS, callers=CALLERS, age=1.0, options=level)
    assert [phase.failures for phase in (two, killed, joined, drained)] == [[]] * 4
    first, second, third = HOSTS
    # Servers take turns. A connection that is replaced meanwhile misses some: hence a quarter instead of a half.
    for phase, serving in ((two, (first, second)), (joined, (second, third))):
        assert all(phase.answered[host] >= CALLS / 4 for host in serving), phase.summary()
    assert two.answered[third] == 0
    # The first calls to end in a phase may have been answered just before it.
    assert killed.answered[second] >= CALLS - CALLERS
    assert list(drained.answered) == [third]
    assert drained.answered[third] >= CALLS - CALLERS


def test_a_failed_call_is_counted() -> None:
    phase = Phase("one", [Ended(0.5, None), Ended(1.0, UnavailableError("gone"))], {"a": 1})
    assert phase.failures == ["gone"]
    assert phase.summary()["failed"] == 1
    assert phase.summary()["slowest_ms"] == 1000.0
