"""BLEU against the number of open heads: bundles that `hmc compile --eval` has scored, a series each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmc.artifact.bundle import Level, Manifest, read_manifest
from hmc.artifact.errors import InvalidRequestError
from hmc.training.analysis.cells import change, plain, probability
from hmc.training.analysis.result import CheckpointSource, Result, Summary, versions
from hmc.training.analysis.survivors import mean_and_range

COMMAND = "budgets"
SCORES = ("bleu", "chrf", "bleu_delta", "ci_low", "ci_high", "p_value")
SAME = ("test_set", "sentences", "beam", "bleu_signature")
"""What levels must have in common to be put beside each other."""


def analyse(bundles: Mapping[str, Path], precision: str = "fp32") -> Result:
    """The scores of levels of `precision`, by series and number of open heads, most heads first.

    Levels of a bundle that have as many open heads (of different seeds, say) make one point. Raises
    InvalidRequestError, InvalidArtifactError.
    """
    if not bundles:
        raise InvalidRequestError("give one or more bundles, e.g. L0=bundle")
    series: dict[str, Any] = {}
    sources: list[CheckpointSource] = []
    common: dict[str, Any] = {}
    for name, path in bundles.items():
        manifest = read_manifest(path)
        levels = _scored(path, manifest, precision)
        for level in levels:
            _agree(common, level, f"{path}, level {level.name}")
            sources.append(
                CheckpointSource(name=f"{path}:{level.name}", digest=level.source_checkpoint, heads=level.heads)
            )
        series[name] = _series(levels)
    return Result(
        command=COMMAND,
        checkpoints=sources,
        settings={**common, "precision": precision},
        versions=versions(),
        data={"series": series},
    )


def _scored(path: Path, manifest: Manifest, precision: str) -> list[Level]:
    levels = [level for level in manifest.levels if level.precision == precision]
    if not levels:
        there = ", ".join(dict.fromkeys(level.precision for level in manifest.levels))
        raise InvalidRequestError(f"bundle {path} has no level in {precision}; it has {there}")
    if unscored := [level.name for level in levels if level.quality is None]:
        raise InvalidRequestError(
            f"bundle {path}: level {unscored[0]} has no scores; compile the bundle with --eval SRC REF"
        )
    return levels


def _agree(common: dict[str, Any], level: Level, where: str) -> None:
    """Raises InvalidRequestError unless the level was scored as the first one was."""
    assert level.quality is not None
    for key in SAME:
        value = getattr(level.quality, key)
        if common.setdefault(key, value) != value:
            raise InvalidRequestError(f"{where}: {key} is {value}, elsewhere {common[key]}: scores cannot be compared")


def _series(levels: list[Level]) -> dict[str, Any]:
    points = []
    for heads in sorted({level.heads for level in levels}, reverse=True):
        rows = [
            {"name": level.name, **{key: getattr(level.quality, key) for key in SCORES}}
            for level in levels
            if level.heads == heads
        ]
        spreads = {key: mean_and_range(row[key] for row in rows) for key in ("bleu", "bleu_delta")}
        points.append({"heads": heads, **spreads, "levels": rows})
    assert levels[0].quality is not None
    return {"reference_level": levels[0].quality.reference_level, "points": points}


def summary(result: Result) -> Summary:
    """A row a point."""
    rows = tuple(
        (name, str(point["heads"]), str(len(point["levels"])), *_cells(point, series["reference_level"]))
        for name, series in result.data["series"].items()
        for point in series["points"]
    )
    columns = ("series", "heads", "levels", "BLEU", "least to most", "Δ BLEU (95 %)", "p")
    s = result.settings
    note = f"{s['test_set']}, {s['sentences']} sentences, beam {s['beam']}, {s['precision']}, {s['bleu_signature']}"
    about = "Δ is against the reference level of the same bundle; interval and p by paired bootstrap over sentences"
    return Summary("BLEU against open heads", columns, rows, (note, about))


def _cells(point: Mapping[str, Any], reference: str) -> tuple[str, ...]:
    bleu, levels = point["bleu"], point["levels"]
    if len(levels) > 1:
        delta = f"{point['bleu_delta']['mean']:+.2f}"
        return plain(bleu["mean"]), f"{plain(bleu['least'])} to {plain(bleu['most'])}", delta, "–"
    (level,) = levels
    if level["name"] == reference:
        return plain(level["bleu"]), "–", "–", "–"
    delta = change({"value": level["bleu_delta"], "low": level["ci_low"], "high": level["ci_high"]})
    return plain(level["bleu"]), "–", delta, probability(level["p_value"])
