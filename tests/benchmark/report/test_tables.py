"""The line that says which level to take."""

from dataclasses import replace

from tests.benchmark import fakes

from hmc.benchmark.measure.validity import Interval
from hmc.benchmark.report.tables import advice, same


def test_the_fastest_level_within_the_loss_is_named_with_what_faster_ones_lose() -> None:
    line = advice(fakes.report(), loss=1.0)
    assert line == (
        "Take h72. Times as fast as full: 1.3 at batch 1. ΔBLEU: -0.50 [-1.00, +0.20]. No level that surely loses at "
        "most 1 BLEU is faster at batch 1. Faster, but loses or may lose more: h72-int8 is 2.5 times as fast, ΔBLEU "
        "-1.00 [-2.00, -0.10]."
    )


def test_a_level_that_may_lose_more_is_not_taken() -> None:
    line = advice(fakes.report())  # h72 loses 0.5 as measured, and its interval goes to 1
    assert line is not None
    assert line.startswith("Take full: no level that surely loses at most 0.5 BLEU is faster at batch 1. Faster, but ")
    assert "h72 is 1.3 times as fast, ΔBLEU -0.50 [-1.00, +0.20]; h72-int8" in line


def test_with_more_loss_allowed_another_level_is_taken() -> None:
    line = advice(fakes.report(), loss=2.0)
    assert line is not None
    assert line.startswith("Take h72-int8. Times as fast as full: 2.5 at batch 1. ΔBLEU: -1.00 [-2.00, -0.10].")
    assert "may lose" not in line


def test_the_speed_has_its_interval() -> None:
    full, h72, _ = fakes.report().levels
    seen = replace(h72.latency[0], ratio_interval=Interval(0.5, 0.8))
    line = advice(replace(fakes.report(), levels=(full, replace(h72, latency=(seen,)))), loss=1.0)
    assert line is not None
    assert line.startswith("Take h72. Times as fast as full: 1.3 [1.2, 2.0] at batch 1. ")


def test_what_may_be_slower_is_not_called_faster() -> None:
    """Neither as the level to take, nor among those that lose more."""
    full, h72, small = fakes.report().levels
    even = replace(full, latency=(replace(full.latency[0], ratio_interval=Interval(1.0, 1.0)),))
    wide = Interval(0.12, 2.5)
    unsure = [replace(x, latency=(replace(x.latency[0], ratio_interval=wide),)) for x in (h72, small)]
    report = replace(fakes.report(), levels=(even, *unsure))
    for loss in (0.5, 1.0, 5.0):
        assert advice(report, loss) == (
            f"Take full: no level that surely loses at most {loss:g} BLEU is surely faster at batch 1."
        )


def test_levels_whose_intervals_overlap_are_not_told_apart() -> None:
    full, h72, small = fakes.report().levels
    ends = {"full": (1.0, 1.0), "h72": (0.5, 0.8), "h72-int8": (0.3, 0.6)}
    levels = tuple(
        replace(level, latency=(replace(level.latency[0], ratio_interval=Interval(*ends[level.name])),))
        for level in (full, h72, small)
    )
    line = advice(replace(fakes.report(), levels=levels), loss=1.0)
    assert line is not None
    assert line.startswith("Take h72. ")
    assert "h72-int8" not in line


def test_the_largest_batch_decides() -> None:
    report = fakes.report()
    both = replace(report.conditions, batches=(1, 32))
    ratios = {"full": 1.0, "h72": 1.25, "h72-int8": 0.4}
    levels = [
        replace(level, latency=(*level.latency, replace(level.latency[0], batch=32, ratio=ratios[level.name])))
        for level in report.levels
    ]
    line = advice(replace(report, conditions=both, levels=tuple(levels)))
    assert line is not None
    assert line.startswith("Take full: no level that surely loses at most 0.5 BLEU is faster at batch 32. Faster, but ")
    assert "h72-int8 is 2.5 times as fast, ΔBLEU -1.00 [-2.00, -0.10]" in line


def test_a_share_of_equal_translations_stands_where_they_were_made() -> None:
    report = fakes.whole_report()
    [peer] = report.peers
    assert same(report, peer, "batch 1, beam 4") == "90.0%"
    assert same(report, peer, "batch 1, beam 1") == "–"  # measured at another setting of the engine


def test_without_references_there_is_no_advice() -> None:
    assert advice(fakes.report(with_quality=False)) is None
