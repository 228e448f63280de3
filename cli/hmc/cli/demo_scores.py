"""The recorded scores of the embedded model, and the check that what the demo serves is what was scored.

`experiments.kind_scores --ship` writes them. They are of six kinds of text, which cannot be part of the package, and
decide which level is recommended. With them stands what each level makes of the demo's own sentences. Where the demo's
levels do the same, or nearly, the recorded scores are theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from hmc.artifact.bundle.manifest import Quality, Strict
from hmc.benchmark.report.results import LevelReport, PeerReport, Report

REFERENCE_WITHIN = 0.5
"""BLEU by which the reference level, whose difference to itself has no interval, may differ from when it was scored."""


class Sample(Strict):
    """What a level, or another engine, makes of the demo's own sentences."""

    sentences: int
    translations: str
    """sha256 over them, a line each."""
    bleu: float
    bleu_delta: float
    """BLEU minus the reference level's BLEU."""


class ShippedScores(Strict):
    """The scores of a level, or of another engine with the weights of the reference level."""

    checkpoint: str
    """`checkpoint_digest` of its weights."""
    quality: Quality
    sample: Sample


def read_scores(path: Path) -> dict[str, ShippedScores]:
    """Name of a level or of another engine → its scores."""
    return TypeAdapter(dict[str, ShippedScores]).validate_json(path.read_text(encoding="utf-8"))


def sample_of(translations: Sequence[str], quality: Quality) -> Sample:
    """What is noted of translations of the demo's sentences and of their quality."""
    lines = "".join(f"{line}\n" for line in translations)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return Sample(sentences=len(translations), translations=digest, bleu=quality.bleu, bleu_delta=quality.bleu_delta)


@dataclass(frozen=True)
class Agreement:
    """Whether what the demo measured is what was scored."""

    report: Report
    """If it is, the levels have their recorded scores, and so have other engines that were scored likewise."""
    holds: bool
    said: str
    """The same in words."""


def agreement(report: Report, checkpoints: Mapping[str, str], scores: Mapping[str, ShippedScores]) -> Agreement:
    """Compares a report on the demo's sentences with what was noted when the scores were recorded.

    checkpoints: name of a level or of another engine → digest of its weights. A level is what was scored if it has the
    same weights and gives the same translations, or nearly: processors and executors round in their own ways, so its
    difference to the reference level may be another one, within today's interval of it.
    """
    number = report.conditions.sentences
    known = {
        name: scored
        for name, scored in scores.items()
        if scored.checkpoint == checkpoints.get(name) and scored.sample.sentences == number
    }
    found = {system.name: _compared(system, report, known) for system in report.systems}
    levels = [level.name for level in report.levels]
    if missing := [name for name in levels if name not in known]:
        said = f"There are no recorded scores of {', '.join(missing)}: these {number} sentences decide."
        return Agreement(report, False, said)
    if apart := [name for name in levels if found[name] == "apart"]:
        said = (
            f"The recorded scores are not used: {', '.join(apart)} translate these {number} sentences with another "
            "BLEU than when they were scored. So these sentences decide."
        )
        return Agreement(report, False, said)
    held = {name: known[name].quality for name, how in found.items() if how != "apart"}
    equal = sum(found[name] == "equal" for name in levels)
    said = f"{equal} of {len(levels)} levels translate" if equal < len(levels) else "all levels translate"
    said += " them as when they were scored"
    if equal < len(levels):
        said += ", and the others lose as much, within their intervals"
    return Agreement(
        replace(
            report,
            levels=tuple(replace(level, recorded=held[level.name]) for level in report.levels),
            peers=tuple(replace(peer, recorded=held.get(peer.name)) for peer in report.peers),
        ),
        True,
        f"These scores are recorded. The demo's own {number} sentences agree: {said}.",
    )


def _compared(
    system: LevelReport | PeerReport, report: Report, known: Mapping[str, ShippedScores]
) -> Literal["equal", "near", "apart"]:
    """Whether its translations are those that were noted, or its loss is, within its interval."""
    quality = system.quality_at(report.conditions.headline.beam)
    if system.name not in known or quality is None:
        return "apart"
    noted = known[system.name].sample
    if sample_of(system.translations, quality).translations == noted.translations:
        return "equal"
    if system.name == quality.reference_level:
        near = abs(quality.bleu - noted.bleu) <= REFERENCE_WITHIN
    else:
        near = quality.ci_low <= noted.bleu_delta <= quality.ci_high
    return "near" if near else "apart"
