"""The self-test on a clock that is not the machine's; and that it fails where the benchmark would be wrong."""

from __future__ import annotations

import pytest

from hmc.benchmark.self_test import FakeClock, flagged, loaded, queued, recovered, saturated, self_test


def test_everything_known_is_found() -> None:
    checks = self_test(FakeClock())
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == 3 + 3 + 3 + 1 + 2 + 3 + 3


class Lying(FakeClock):
    """Adds a millisecond to every second time that it is asked for."""

    asked = 0

    def perf_counter(self) -> float:
        self.asked += 1
        return self.now + 0.001 * (self.asked % 2 == 0)


def test_a_wrong_clock_is_noticed() -> None:
    assert [check.passed for check in recovered(FakeClock())] == [True] * 3
    assert not all(check.passed for check in recovered(Lying()))


def test_a_load_that_forgets_the_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency from when a call was sent, by a client that waits for answers: coordinated omission."""
    from hmc.benchmark.load.open_loop import _Load

    plain = _Load._one

    async def closed(self: _Load, number: int, due: float) -> None:
        del due
        await plain(self, number, self._clock() - self._began + 0.01)

    monkeypatch.setattr(_Load, "_one", closed)
    assert not all(check.passed for check in [*loaded(), *queued()])


def test_a_slowdown_within_the_noise_is_not_called_one() -> None:
    [check] = flagged(0.02)
    assert (check.found, check.passed) == ("0", False)


def test_saturation_is_found_from_far_below() -> None:
    [check] = saturated()
    assert check.passed
