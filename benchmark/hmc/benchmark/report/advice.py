"""Which level of a report to take, in one line."""

from __future__ import annotations

from hmc.benchmark.measure.latency import Setting
from hmc.benchmark.report.results import LevelReport, Report

LOSS = 0.5
"""BLEU that a level may lose to be worth taking for its speed."""


def advice(report: Report, loss: float = LOSS) -> str | None:
    """Names the fastest level that loses at most `loss` BLEU, and the faster ones with what they lose.

    Fastest: at the largest batch measured, with the headline beam. None where quality was not measured.
    """
    conditions = report.conditions
    reference, beam = conditions.quality_reference, conditions.headline.beam
    if reference is None:
        return None
    serving = Setting(max(conditions.batches), beam)

    def faster(level: LevelReport, setting: Setting) -> float:
        return 1 / level.latency_at(setting).ratio

    losses = {level.name: quality.bleu_delta for level in report.levels if (quality := level.quality_at(beam))}
    good = [level for level in report.levels if losses.get(level.name, -loss - 1) >= -loss]
    best = max(good, key=lambda level: faster(level, serving))
    speeds = " and ".join(f"{faster(best, Setting(n, beam)):.1f} at batch {n}" for n in conditions.batches)
    line = (
        f"Take {best.name}: as fast as {conditions.latency_reference} times {speeds}, ΔBLEU {losses[best.name]:+.2f}. "
        f"No level that loses at most {loss:g} BLEU is faster at batch {serving.batch}."
    )
    beyond = [level for level in report.levels if level not in good and faster(level, serving) > faster(best, serving)]
    costs = [f"{x.name} is {faster(x, serving):.1f}× ({losses[x.name]:+.2f})" for x in beyond if x.name in losses]
    return f"{line} Faster, but worse: {', '.join(costs)}." if costs else line
