"""What changed between two reports; the times are made here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.benchmark import fakes

from hmc.artifact import InvalidRequestError
from hmc.benchmark import Report
from hmc.benchmark.measure.validity import Steadiness, steadiness
from hmc.benchmark.report.changes import compare


def timed(
    factor: float, seed: int, *, noise: float = 0.01, rounds: int = 4, only: int | None = None, machine: float = 0.0
) -> Report:
    """The whole report with other times. factor: times as slow. only: the one level that is; None: all. machine: the
    noise of rounds that all levels share."""
    rng, plain = np.random.default_rng(seed), fakes.whole_report()
    usual = np.linspace(10.0, 30.0, 7)
    levels = []
    shared = np.exp(np.random.default_rng(seed).normal(0, machine, (rounds, 1)))
    for number, level in enumerate(plain.levels):
        slower = factor if only in (None, number) else 1.0
        table = slower * usual * shared * np.exp(rng.normal(0, noise, (rounds, 7)))
        samples = tuple(map(tuple, table.tolist()))
        at = replace(
            level.latency[0], samples_ms=samples, p50_ms=float(np.median(table)), steadiness=steadiness(samples)
        )
        levels.append(replace(level, latency=(at,)))
    conditions = replace(plain.conditions, rounds=rounds)
    machine_then = replace(plain.machine, load_average=0.0)
    return replace(plain, levels=tuple(levels), peers=(), conditions=conditions, machine=machine_then)


@pytest.mark.parametrize("only", [0, 1, 2])
def test_a_slower_level_is_worse_and_a_faster_one_better(only: int) -> None:
    found = compare(timed(1.0, 1), timed(1.2, 2, only=only))
    assert [x.verdict for x in found.times] == ["worse" if number == only else "same" for number in range(3)]
    assert found.times[only].change == pytest.approx(0.2, abs=0.03)
    assert found.times[only].interval.low < 0.2 < found.times[only].interval.high
    name = found.times[only].system
    assert found.worse[0].startswith(f"{name} at batch 1, beam 4 takes +")
    assert compare(timed(1.2, 2, only=only), timed(1.0, 1)).times[only].verdict == "better"


def test_what_all_levels_share_is_the_machine() -> None:
    found = compare(timed(1.0, 1), timed(1.2, 2))
    assert [x.verdict for x in found.times] == ["not known"] * 3
    assert found.worse == []
    assert found.warnings[0].startswith("At batch 1, beam 4 all levels take +2")
    assert "beside full" in found.warnings[0]
    assert (found.times[0].beside, found.times[0].beside_change) == ("", None)
    assert found.times[1].beside == "full"
    assert found.times[1].beside_change == pytest.approx(0.0, abs=0.03)
    assert [x.verdict for x in compare(timed(1.2, 2), timed(1.0, 1)).times] == ["not known"] * 3
    single = [replace(report, levels=report.levels[:1]) for report in (timed(1.0, 1), timed(1.2, 2))]
    assert [x.verdict for x in compare(*single).times] == ["worse"]  # nothing else says what the machine did


def test_a_level_that_changed_more_than_the_machine() -> None:
    slow = timed(1.15, 2)
    slower = timed(1.15 * 1.3, 3)
    mixed = replace(slow, levels=(*slow.levels[:2], slower.levels[2]))
    assert [x.verdict for x in compare(timed(1.0, 1), mixed).times] == ["not known", "not known", "worse"]


def test_what_was_not_steady_or_busy_is_not_known() -> None:
    after = timed(1.3, 2, only=1)
    unsteady = replace(after.levels[1].latency[0], steadiness=Steadiness(0.2, 0.4, 0, None))
    levels = (after.levels[0], replace(after.levels[1], latency=(unsteady,)), after.levels[2])
    found = compare(timed(1.0, 1), replace(after, levels=levels))
    assert [x.verdict for x in found.times] == ["same", "not known", "same"]
    assert found.unclear[0].startswith(f"{found.times[1].system} at batch 1, beam 4 (+")
    busy = replace(after, machine=replace(after.machine, load_average=float(after.machine.logical_cores)))
    assert [x.verdict for x in compare(timed(1.0, 1), busy).times] == ["same", "not known", "same"]
    assert compare(busy, timed(1.0, 1)).times[1].verdict == "not known"


def test_rounds_of_a_shared_machine_give_no_verdict() -> None:
    verdicts = {
        x.verdict
        for seed in range(30)
        for x in compare(timed(1.0, 2 * seed, machine=0.2), timed(1.0, 2 * seed + 1, machine=0.2)).times
    }
    assert verdicts <= {"same", "not known"}


def test_noise_is_no_change_whatever_its_interval() -> None:
    assert compare(timed(1.0, 1), timed(1.04, 2, only=1)).worse == []
    assert compare(timed(1.0, 1), timed(1.04, 2, only=1), noise=0.02).worse != []
    wide = compare(timed(1.0, 1, noise=0.3), timed(1.1, 2, noise=0.3, only=1))
    assert wide.worse == []  # beyond it, and still by chance


def test_what_an_interval_does_not_exclude_is_told() -> None:
    assert compare(timed(1.0, 1), timed(1.0, 2)).unclear == ()
    unsure = compare(timed(1.0, 1, noise=0.3), timed(1.0, 2, noise=0.3))
    assert unsure.worse == []
    assert unsure.unclear[0].startswith("full at batch 1, beam 4 (+")


def test_the_interval_holds_the_change_95_times_of_100() -> None:
    held = sum(
        x.interval.low <= 0.1 <= x.interval.high
        for seed in range(200)
        for x in compare(timed(1.0, 2 * seed), timed(1.1, 2 * seed + 1), bleu_noise=0.0).times[:1]
    )
    assert held >= 180  # 190 are expected, with a standard deviation of 3


def test_bleu_is_compared_by_its_own_translations() -> None:
    before, after = timed(1.0, 1), timed(1.0, 1)
    bad = tuple(f"ganz andere Worte {n}" for n in range(10))
    after = replace(after, levels=(after.levels[0], replace(after.levels[1], translations=bad), after.levels[2]))
    found = compare(before, after)
    assert [x.verdict for x in found.bleu] == ["same", "worse", "same"]
    assert found.bleu[1].p_value < 0.01
    assert found.worse == [f"h72 loses {-found.bleu[1].change:.2f} BLEU"]


def test_what_else_differs_is_told() -> None:
    before, after = timed(1.0, 1), timed(1.0, 2)
    machine = replace(after.machine, cpu="Another CPU", versions={"hmc": "0.2.0"})
    after = replace(after, machine=machine, conditions=replace(after.conditions, threads=1))
    after = replace(after, sentences=tuple(replace(each, reference="x") for each in after.sentences))
    told = "\n".join(compare(before, after).warnings)
    assert "The machines differ" in told
    assert "The number of threads differs: 2 and 1." in told
    assert "The references differ" in told
    assert "Versions differ: hmc 0.1.0 → 0.2.0." in told


def test_what_only_the_first_report_has_is_told() -> None:
    """A level that was lost would otherwise pass for one that is no worse."""
    before = timed(1.0, 1)
    assert not [line for line in compare(before, timed(1.0, 2)).warnings if "only the first" in line]
    told = "\n".join(compare(before, replace(before, levels=before.levels[:2])).warnings)
    name = before.levels[2].name
    assert f"Not compared, because only the first has them: {name} at batch 1, beam 4" in told
    assert f"BLEU is not compared for {name}" in told


def test_what_is_not_alike_in_scores_and_peers_is_told() -> None:
    before, [peer] = timed(1.0, 1), fakes.whole_report().peers
    rounds = replace(peer.latency[0], samples_ms=before.levels[0].latency[0].samples_ms)
    peer = replace(peer, latency=(rounds,))
    after = replace(before, peers=(replace(peer, settings={"batch 1, beam 4": "fp32"}),))
    told = compare(replace(before, peers=(peer,)), after).warnings
    assert "Peer ran at other settings: batch 1, beam 4: int8 → fp32." in told
    unscored = replace(before, levels=tuple(replace(level, quality=()) for level in before.levels))
    assert any(line.startswith("BLEU is not compared") for line in compare(before, unscored).warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentences": ()}, "the two reports are of different sentences"),
        ({"levels": ()}, "no level at the same batch and beam in common"),
    ],
)
def test_what_cannot_be_compared(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        compare(timed(1.0, 1), replace(timed(1.0, 2), **change))
    with pytest.raises(InvalidRequestError, match="the second report has fewer than 3 rounds"):
        compare(timed(1.0, 1), timed(1.0, 2, rounds=2))
    with pytest.raises(InvalidRequestError, match="noise -1: choose 0 or more"):
        compare(timed(1.0, 1), timed(1.0, 2), noise=-1)
