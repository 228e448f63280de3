"""The line that says which level to take."""

from dataclasses import replace

from tests.benchmark import fakes

from hmc.benchmark.report.tables import advice


def test_the_fastest_level_within_the_loss_is_named_with_what_faster_ones_lose() -> None:
    line = advice(fakes.report())
    assert line == (
        "Take h72. Times as fast as full: 1.3 at batch 1. ΔBLEU: -0.50. No level that loses at most 0.5 BLEU is faster "
        "at batch 1. Faster, but worse: h72-int8 is 2.5× (-1.00)."
    )


def test_with_more_loss_allowed_another_level_is_taken() -> None:
    line = advice(fakes.report(), loss=1.0)
    assert line is not None
    assert line.startswith("Take h72-int8. Times as fast as full: 2.5 at batch 1. ΔBLEU: -1.00.")
    assert "worse" not in line


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
    assert line.startswith("Take full: no level that loses at most 0.5 BLEU is faster at batch 32. Faster, but worse: ")
    assert "h72-int8 is 2.5× (-1.00)" in line


def test_without_references_there_is_no_advice() -> None:
    assert advice(fakes.report(with_quality=False)) is None
