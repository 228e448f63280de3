"""BLEU against the number of open heads. Each bundle scored by `hmc compile --eval` is one series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmc.artifact.bundle.manifest import Level, Manifest, read_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.artifact.significance import Estimate
from hmc.training.analysis.across.survivors import mean_and_range
from hmc.training.analysis.common.records import BudgetsData, BudgetSeries, BundleScores, SeriesPoint
from hmc.training.analysis.common.result import CheckpointSource, Result
from hmc.training.analysis.common.summary import Summary, change, plain, probability

COMMAND = "budgets"
SCORES = ("bleu", "chrf", "bleu_delta", "ci_low", "ci_high", "p_value")
SAME = ("test_set", "sentences", "beam", "bleu_signature")
"""Fields of a quality that must be equal in all levels, or their scores cannot be compared."""
ALIKE = 0.98
"""Levels of equal heads have at least this share of each other's parameters."""


def analyse(bundles: Mapping[str, Path], precision: str = "fp32") -> Result[BudgetsData]:
    """Scores of the levels of `precision`, by series and number of open heads, most heads first.

    Levels of one bundle with equal numbers of open heads, e.g. of several seeds, make one point. Raises
    InvalidRequestError for levels without scores or with scores that cannot be compared, InvalidArtifactError for a
    bundle that cannot be read.
    """
    if not bundles:
        raise InvalidRequestError("give one or more bundles, e.g. L0=bundle")
    series: dict[str, BudgetSeries] = {}
    sources: list[CheckpointSource] = []
    common: dict[str, Any] = {}
    tests: dict[str, None] = {}
    for name, path in bundles.items():
        manifest = read_manifest(path)
        levels = _scored(path, manifest, precision)
        for level in levels:
            _agree(common, level, f"{path}, level {level.name}")
            tests[_test_of(level)] = None
            sources.append(
                CheckpointSource(name=f"{path}:{level.name}", digest=level.source_checkpoint, heads=level.heads)
            )
        series[name] = _series(levels)
    return Result(
        command=COMMAND,
        checkpoints=sources,
        settings={**common, "precision": precision, "p_values_by": list(tests)},
        data=BudgetsData(series=series),
    )


def _scored(path: Path, manifest: Manifest, precision: str) -> list[Level]:
    # A twin with shortlists is another system, and not another seed.
    levels = [level for level in manifest.levels if level.precision == precision and level.shortlist is None]
    if not levels:
        precisions = ", ".join(dict.fromkeys(level.precision for level in manifest.levels))
        raise InvalidRequestError(f"bundle {path} has no level in {precision}; it has {precisions}")
    for level in levels:  # of equal heads, seeds differ in a few biases, and neurons or layers in far more
        near = [one for one in levels if one.heads == level.heads and one.parameters < ALIKE * level.parameters]
        if near:
            raise InvalidRequestError(
                f"bundle {path}: {level.name} and {near[0].name} have equal heads, and other neurons or layers: "
                "compile one of them into a bundle of its own"
            )
    if unscored := [level.name for level in levels if level.quality is None]:
        raise InvalidRequestError(
            f"bundle {path}: level {unscored[0]} has no scores; compile the bundle with a test set"
        )
    for level in levels:
        if broken := [key for key in SCORES if not math.isfinite(getattr(level.quality, key))]:
            raise InvalidRequestError(
                f"bundle {path}: {broken[0]} of level {level.name} is not a number; score the bundle again with "
                "`hmc bench --record`"
            )
    return levels


def _agree(common: dict[str, Any], level: Level, where: str) -> None:
    """Raises InvalidRequestError unless the level was scored as the first one was."""
    assert level.quality is not None
    for key in SAME:
        value = getattr(level.quality, key)
        if common.setdefault(key, value) != value:
            raise InvalidRequestError(
                f"{where}: {key} is {value}, but {common[key]} in the first level: these scores cannot be compared"
            )


def _test_of(level: Level) -> str:
    """The test that gave the level's p-value, with its trials and seed."""
    assert level.quality is not None
    test = level.quality.significance
    return f"{test.test} ({test.trials} trials, seed {test.seed})" if test else "paired bootstrap (1000 resamples)"


def _series(levels: list[Level]) -> BudgetSeries:
    points: list[SeriesPoint] = []
    for heads in sorted({level.heads for level in levels}, reverse=True):
        rows = [BundleScores(name=level.name, **vars(level.quality)) for level in levels if level.heads == heads]
        bleu = mean_and_range(row.bleu for row in rows)
        delta = mean_and_range(row.bleu_delta for row in rows)
        points.append(SeriesPoint(heads=heads, bleu=bleu, bleu_delta=delta, levels=rows))
    assert levels[0].quality is not None
    return BudgetSeries(reference_level=levels[0].quality.reference_level, points=points)


def summary(result: Result[BudgetsData]) -> Summary:
    """One row per point."""
    rows = []
    for name, series in result.data.series.items():
        for point in series.points:
            cells = _cells(point, series.reference_level)
            rows.append((name, str(point.heads), str(len(point.levels)), *cells))
    columns = ("series", "heads", "levels", "BLEU", "least to most", "Δ BLEU (95 %)", "p")
    s = result.settings
    note = f"{s['test_set']}, {s['sentences']} sentences, beam {s['beam']}, {s['precision']}, {s['bleu_signature']}"
    about = (
        "Δ is against the reference level of the same bundle; interval by paired bootstrap over sentences, "
        f"p by {' and '.join(s['p_values_by'])}"
    )
    return Summary("BLEU against open heads", columns, tuple(rows), (note, about))


def _cells(point: SeriesPoint, reference: str) -> tuple[str, ...]:
    bleu = point.bleu
    if len(point.levels) > 1:
        return plain(bleu.mean), f"{plain(bleu.least)} to {plain(bleu.most)}", f"{point.bleu_delta.mean:+.2f}", "–"
    (level,) = point.levels
    if level.name == reference:
        return plain(level.bleu), "–", "–", "–"
    delta = change(Estimate(level.bleu_delta, level.ci_low, level.ci_high))
    return plain(level.bleu), "–", delta, probability(level.p_value)
