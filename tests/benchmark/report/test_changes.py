"""What changed between two reports; the times are made here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.benchmark import fakes

from hmc.artifact import InvalidRequestError
from hmc.benchmark import Report
from hmc.benchmark.report.changes import compare


def timed(factor: float, seed: int, *, noise: float = 0.01, rounds: int = 4) -> Report:
    """The whole report with other times for all levels. factor: times as slow."""
    rng, plain = np.random.default_rng(seed), fakes.whole_report()
    usual = np.linspace(10.0, 30.0, 7)
    levels = []
    for level in plain.levels:
        table = factor * usual * np.exp(rng.normal(0, noise, (rounds, 7)))
        at = replace(level.latency[0], samples_ms=tuple(map(tuple, table.tolist())), p50_ms=float(np.median(table)))
        levels.append(replace(level, latency=(at,)))
    conditions = replace(plain.conditions, rounds=rounds)
    return replace(plain, levels=tuple(levels), peers=(), conditions=conditions)


def test_a_slower_level_is_worse_and_a_faster_one_better() -> None:
    found = compare(timed(1.0, 1), timed(1.2, 2))
    assert [x.verdict for x in found.times] == ["worse"] * 3
    assert found.times[0].change == pytest.approx(0.2, abs=0.03)
    assert found.times[0].interval.low < 0.2 < found.times[0].interval.high
    assert found.worse[0].startswith("full at batch 1, beam 4 takes +2")
    assert [x.verdict for x in compare(timed(1.2, 2), timed(1.0, 1)).times] == ["better"] * 3


def test_noise_is_no_change_whatever_its_interval() -> None:
    assert compare(timed(1.0, 1), timed(1.04, 2)).worse == []
    assert compare(timed(1.0, 1), timed(1.04, 2), noise=0.02).worse != []
    assert compare(timed(1.0, 1, noise=0.3), timed(1.1, 2, noise=0.3)).worse == []  # beyond it, and still by chance


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
        ({"sentences": ()}, "the two reports are of other sentences"),
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
