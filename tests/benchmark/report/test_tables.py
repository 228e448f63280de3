"""The line that says which level to take."""

from dataclasses import replace

from tests.benchmark import fakes

from hmc.artifact.bundle.order import RULE, recommended
from hmc.benchmark import LevelReport
from hmc.benchmark.measure.validity import Interval
from hmc.benchmark.report.tables import advice, same


def test_the_recommended_level_is_named_with_what_faster_ones_lose() -> None:
    full, h72, int8 = fakes.report().levels
    levels = (full, scored(h72, 29.5, -0.8, 0.2), scored(int8, 28.5, -2.5, -0.6))
    line = advice(replace(fakes.report(), levels=levels))
    assert line == (
        f"Take h72, the fastest level that {RULE}. Times as fast as full: 1.3 at batch 1. ΔBLEU: -0.50 "
        "[-0.80, +0.20]. Perhaps faster (--rounds 3 or more tells), but loses more: h72-int8 is 2.5 times as fast, "
        "ΔBLEU -1.50 [-2.50, -0.60]."
    )


def scored(level: LevelReport, bleu: float, low: float, high: float) -> LevelReport:
    """The level with another quality."""
    return replace(level, quality=(fakes.quality(level.name, bleu, low, high),))


def test_the_bundle_gets_the_level_that_the_advice_names() -> None:
    full, h72, int8 = fakes.report().levels
    report = replace(fakes.report(), levels=(full, h72, scored(int8, 29.6, -0.9, -0.1)))
    line = advice(report)
    assert line is not None
    assert line.startswith("Take h72-int8, the fastest")
    assert recommended(report.described_levels()).name == "h72-int8"


def test_the_reference_level_is_taken_where_the_others_lose_too_much() -> None:
    full, h72, int8 = fakes.report().levels
    line = advice(replace(fakes.report(), levels=(full, scored(h72, 28.9, -2, 0), scored(int8, 28.5, -2, 0))))
    assert line is not None
    assert line.startswith(f"Take full, the fastest level that {RULE}. Perhaps faster (--rounds 3 or more tells), but")
    assert "loses more: h72 is 1.3" in line


def test_a_level_that_another_beats_is_no_advice() -> None:
    full, h72, int8 = fakes.report().levels
    line = advice(replace(fakes.report(), levels=(full, scored(h72, 27.0, -4, 0), scored(int8, 28.5, -2, 0))))
    assert line is not None
    assert "h72 is" not in line


def test_the_speed_has_its_interval() -> None:
    full, h72, _ = fakes.report().levels
    unsure = replace(h72.latency[0], ratio_interval=Interval(0.5, 1.25))
    level = scored(replace(h72, latency=(unsure,)), 29.5, -0.8, 0.2)
    line = advice(replace(fakes.report(), levels=(full, level)))
    assert line is not None
    assert "Times as fast as full: 1.3 [0.8, 2.0] at batch 1. " in line


def test_what_may_be_slower_is_not_called_faster() -> None:
    full, h72, int8 = fakes.report().levels
    even = replace(full, latency=(replace(full.latency[0], ratio_interval=Interval(1.0, 1.0)),))
    lossy = (scored(h72, 28.9, -2, 0), scored(int8, 28.5, -2, 0))
    for low, high, said in ((0.12, 2.5, False), (0.3, 0.6, True)):
        wide = [replace(x, latency=(replace(x.latency[0], ratio_interval=Interval(low, high)),)) for x in lossy]
        line = advice(replace(fakes.report(), levels=(even, *wide)))
        assert line is not None
        assert ("Faster, but loses more" in line) is said
        assert "Perhaps" not in line


def test_a_share_of_equal_translations_stands_where_they_were_made() -> None:
    report = fakes.whole_report()
    [peer] = report.peers
    assert same(report, peer, "batch 1, beam 4") == "90.0%"
    assert same(report, peer, "batch 1, beam 1") == "–"  # measured at another setting of the engine


def test_without_references_there_is_no_advice() -> None:
    assert advice(fakes.report(with_quality=False)) is None
