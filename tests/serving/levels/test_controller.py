"""`auto` in simulated time: what it keeps, how soon it reacts, and how often it switches."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.serving.fakes import FakeClock
from tests.serving.levels.simulation import Run, SimulatedLevel, regular, simulate
from tests.serving.levels.test_choosing import level

from hmc.artifact import InvalidRequestError
from hmc.serving.levels.choosing import LevelCandidate
from hmc.serving.levels.controller import FIRST_HOLD_S, AutoController, AutoPolicy

TARGET_S = 0.2
POLICY = AutoPolicy(target_ms=1000 * TARGET_S)
SECONDS = {"h24": 0.08, "h12": 0.05, "h6": 0.025}
"""Level → seconds of a text: 100, 160 and 320 texts a second."""


def made(clock: FakeClock, *, predicts: bool = True) -> list[SimulatedLevel]:
    return [SimulatedLevel(level(n, int(n[1:])), s, clock, predicts=predicts) for n, s in SECONDS.items()]


def run(*phases: tuple[float, float], policy: AutoPolicy | None = POLICY, predicts: bool = True) -> Run:
    clock = FakeClock()
    return simulate(made(clock, predicts=predicts), clock, regular(*phases), policy)


def test_a_load_that_the_best_level_can_do_stays_there() -> None:
    found = run((60, 80))
    assert (found.used(0, 60), found.switches, found.goodput(TARGET_S)) == (["h24"], 0, 1.0)


def test_a_step_is_answered_at_once_and_taken_back_slowly() -> None:
    """50 → 250 → 50 texts a second: only h6 can do 250."""
    phases = (10, 50), (30, 250), (40, 50)
    found = run(*phases)
    assert found.first("h6", 10) < 11.0
    assert found.used(11, 40) == ["h6"]
    assert found.goodput(TARGET_S) > 0.97
    assert found.first("h12", 40) >= 40 + FIRST_HOLD_S
    assert found.first("h24", 40) >= 40 + 2 * FIRST_HOLD_S
    assert found.used(60, 80) == ["h24"]
    assert found.switches == 4
    assert run(*phases, policy=None).goodput(TARGET_S) < 0.3, "the best level alone keeps the target"


def test_it_reacts_to_latencies_alone() -> None:
    """Levels that predict nothing: the first slow answers have to come."""
    found = run((10, 50), (30, 250), (40, 50), predicts=False)
    assert found.first("h6", 10) < 13.0
    assert found.goodput(TARGET_S) > 0.9
    assert found.switches <= 8


def test_a_ramp_goes_down_and_up_in_order() -> None:
    up = [(2.0, rate) for rate in range(20, 300, 20)]
    found = run(*up, *reversed(up), (40, 20))
    assert found.used(0, 28) == ["h24", "h12", "h6"]
    assert found.used(56, 96)[-1] == "h24"
    assert found.goodput(TARGET_S) > 0.97
    assert found.switches <= 8


def test_flapping_load_does_not_flap_the_level() -> None:
    """Two seconds with more than the best level can do, two seconds with little, again and again."""
    found = run(*[(2, 150), (2, 20)] * 15)
    assert found.switches <= 6
    assert found.goodput(TARGET_S) > 0.97
    slow = run(*[(10, 150), (10, 20)] * 5)
    assert slow.switches <= 8
    assert slow.goodput(TARGET_S) > 0.97


def test_an_overload_that_lasts_is_tried_again_once_a_minute_at_most() -> None:
    found = run((130, 130))
    assert found.used(0, 130) == ["h24", "h12"]
    assert found.switches <= 5
    assert found.goodput(TARGET_S) > 0.97


def test_a_burst_costs_no_more_than_a_while_at_the_next_level() -> None:
    clock = FakeClock()
    arrivals = sorted([*regular((60, 20)), *[10 + n / 1000 for n in range(50)]])
    found = simulate(made(clock), clock, arrivals, POLICY)
    assert found.goodput(TARGET_S) > 0.99
    assert found.used(30, 60) == ["h24"]
    assert found.switches <= 4


def test_without_a_target_pending_texts_decide() -> None:
    found = run((10, 50), (20, 250), policy=AutoPolicy(max_pending=20))
    assert found.used(0, 10) == ["h24"]
    assert found.used(12, 30)[-1] == "h6"
    assert max(found.latencies) < 20 * SECONDS["h24"]


def test_if_all_are_overloaded_the_cheapest_serves() -> None:
    found = run((5, 600))
    assert found.used(2, 5) == ["h6"]
    assert found.switches == 2


def choosing() -> tuple[list[SimulatedLevel], Callable[[], str]]:
    """Levels, and what chooses one of them each second."""
    clock = FakeClock()
    levels = made(clock)
    controller = AutoController(POLICY, clock)

    def chosen() -> str:
        clock.now += 1.0
        return controller.choose([each.candidate() for each in levels]).name

    return levels, chosen


def test_a_level_that_fails_is_replaced_by_the_next_below_and_comes_back() -> None:
    levels, chosen = choosing()
    assert chosen() == "h24"
    levels[0].failed = True
    assert chosen() == "h12"
    levels[1].failed = True
    assert chosen() == "h6"
    levels[2].failed = True
    assert chosen() == "h6", "all have failed: it stays"
    for each in levels:
        each.failed = False
    later = [chosen() for _ in range(20)]
    assert (later[0], later[-1]) == ("h6", "h24")


def test_a_level_that_another_one_beats_is_no_step() -> None:
    controller = AutoController(POLICY, FakeClock())
    best, slow = level("h24", 24, drop=0.0, p95=80), level("h12", 12, drop=1.6, p95=70)
    fast = level("h12-int8", 12, precision="int8", drop=1.5, p95=30)
    crowded = [LevelCandidate(each, pending=POLICY.max_pending) for each in (best, slow)]
    assert controller.choose([*crowded, LevelCandidate(fast)]).name == "h12-int8"
    assert controller.choose([*crowded, LevelCandidate(fast)]).name == "h12-int8"


def test_a_level_that_was_unloaded_is_left() -> None:
    controller = AutoController(POLICY, FakeClock())
    best, small = (LevelCandidate(level(name, heads)) for name, heads in (("h24", 24), ("h6", 6)))
    assert controller.choose([best, small]).name == "h24"
    assert controller.choose([small]).name == "h6"


def test_the_next_below_takes_the_place_of_a_level_that_was_unloaded() -> None:
    levels, chosen = choosing()
    levels[0].failed = True
    assert chosen() == "h12"
    levels[0].failed = False
    del levels[1]
    assert chosen() == "h6"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"max_pending": 0}, "auto: 0 texts pending: choose 1 or more"),
        ({"target_ms": 0.0}, "auto: a target of 0 ms: choose more than 0"),
        ({"target_ms": float("nan")}, "auto: a target of nan ms"),
    ],
)
def test_policies_out_of_range(policy: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(said)):
        AutoPolicy(**policy)  # type: ignore[arg-type]  # each of its own type
